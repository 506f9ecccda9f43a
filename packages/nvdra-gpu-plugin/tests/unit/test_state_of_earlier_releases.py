# SPDX-License-Identifier: Apache-2.0
"""State files that earlier releases wrote, opened by this one."""

import shutil
from pathlib import Path

import pytest
from nvdra_api.ids import ClaimUID
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.process.clock import SystemClock

FILES = sorted((Path(__file__).parent / "golden").glob("state-*.sqlite"))


def uid(number: int) -> ClaimUID:
    return ClaimUID(f"11111111-2222-4333-8444-00000000000{number}")


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
async def test_a_state_file_of_an_earlier_release_opens_with_every_claim(
    file: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(file, tmp_path / "state.sqlite"))
    boot = "5a1f6a4e-0000-4000-8000-000000000002"
    async with RecordStore.open(path, boot, SystemClock()) as store:
        claims = PreparedClaims(store, GpuClaimRecord, lambda _, __: None)
        assert store.recovery_marker is None
        assert not claims.unreadable
        assert set(claims) == {uid(0), uid(1), uid(2)}
        assert [device.device for device in claims[uid(1)].devices] == ["gpu-2", "gpu-3"]
        one = claims[uid(0)]
        assert one.generation == "0123456789ab"
        assert (one.pods, one.pod_names) == (("p1",), ("pod-p1",))
        (device,) = one.devices
        assert device.uuid == "GPU-00000000-0000-0000-0000-000000000001"
        assert device.pci == "0000:01:00.0"
        assert device.cdi_ids == ("k8s.gpu.nvidia.com/device=gpu-1-0123456789ab",)
        assert [each.is_admin for each in claims[uid(2)].devices] == [True]
        assert store.is_root_span_written(uid(0))
        assert not store.is_root_span_written(uid(1))


def test_there_is_a_state_file_of_an_earlier_release() -> None:
    assert FILES
