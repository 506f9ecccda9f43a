# SPDX-License-Identifier: Apache-2.0
"""State files that earlier releases wrote, opened by this one."""

import shutil
from pathlib import Path

import pytest
from nvdra_api.ids import ClaimUID
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.clock import SystemClock

FILES = sorted((Path(__file__).parent / "golden").glob("state-*.sqlite"))
CHANNEL, WAITING, DAEMON = (
    ClaimUID(f"11111111-2222-4333-8444-00000000001{number}") for number in range(3)
)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
async def test_a_state_file_of_an_earlier_release_opens_with_every_claim(
    file: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(file, tmp_path / "state.sqlite"))
    boot = "5a1f6a4e-0000-4000-8000-000000000002"
    async with RecordStore.open(path, boot, SystemClock()) as store:
        claims = PreparedClaims(store, DomainClaimRecord, lambda _, __: None)
        assert store.recovery_marker is None
        assert not claims.unreadable
        assert set(claims) == {CHANNEL, WAITING, DAEMON}
        channel = claims[CHANNEL]
        assert channel.is_channel
        assert channel.domain == "22222222-2222-4333-8444-000000000001"
        assert (channel.domain_namespace, channel.domain_name) == ("team", "ring")
        assert (channel.mode, channel.channels, channel.first_channel) == ("Single", 1, 0)
        assert channel.clique == "33333333-2222-4333-8444-000000000001.7"
        assert len(channel.device.cdi_ids) == 1
        assert claims[WAITING].is_joining
        assert not claims[DAEMON].is_channel
        assert claims[DAEMON].device.cdi_ids == ("a/b=c", "a/b=d")


def test_there_is_a_state_file_of_an_earlier_release() -> None:
    assert FILES
