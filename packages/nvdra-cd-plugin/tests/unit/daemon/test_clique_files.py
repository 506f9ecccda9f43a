# SPDX-License-Identifier: Apache-2.0
"""Files with the clique of the node, for the daemons that are prepared on it."""

import asyncio
from pathlib import Path

from nvdra_api.ids import ClaimUID, CliqueID, DomainUID
from nvdra_cd_plugin.daemon.clique_files import CliqueFiles
from nvdra_cd_plugin.daemon.domain_directories import DomainDirectories
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.node.file_worker import FileWorker
from nvdra_runtime.computedomain import node_clique
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.worker import Worker
from nvdra_testing.polling import wait_until

DAEMONS, CHANNELS = (DomainUID(f"5f4dcc3b-5aa7-4d83-8f52-00000000000{number}") for number in (1, 2))


def record(domain: DomainUID, kind: str) -> DomainClaimRecord:
    return DomainClaimRecord.model_validate(
        {
            "uid": f"claim-{domain}",
            "namespace": "ns",
            "name": "c",
            "domain": domain,
            "devices": [{"request": "r", "pool": "p", "device": f"{kind}-0", "kind": kind}],
        }
    )


async def test_daemons_and_no_others_are_told_the_clique_and_each_other_one(
    tmp_path: Path,
) -> None:
    directories = DomainDirectories(tmp_path)
    for uid in (DAEMONS, CHANNELS):
        directories.create(uid)
    prepared = {
        ClaimUID("1"): record(DAEMONS, "daemon"),
        ClaimUID("2"): record(CHANNELS, "channel"),
    }
    known: list[CliqueID | None] = [None]
    async with Worker("files") as worker:
        files = CliqueFiles(lambda: known[0], prepared, directories, FileWorker(worker))
        async with background_tasks.running(clique_files=files.run):
            await asyncio.sleep(0)
            assert node_clique.read(directories.path(DAEMONS)) is None
            for clique in ("c.2", "c.5"):
                known[0] = CliqueID(clique)
                await wait_until(
                    lambda: node_clique.read(directories.path(DAEMONS)) == known[0], 20
                )
    assert node_clique.read(directories.path(CHANNELS)) is None
