# SPDX-License-Identifier: Apache-2.0
"""What fails unexpectedly in one task of the plugin ends neither the process nor another task."""

import asyncio

from nvdra_testing.faults import task_faults
from nvdra_testing.faults.task_campaign import Campaign
from nvdra_testing.node.domain_rig import DomainRig

PROGRAM = "nvdra-cd-plugin"


async def test_each_exception_in_each_task_leaves_the_others_and_the_node_served(
    rig: DomainRig,
) -> None:
    directory = rig.node.kubelet.parent
    await rig.start(environ=task_faults.environment(directory))
    tasks = task_faults.connect(directory, PROGRAM)
    campaign = Campaign(tasks, lambda: rig.process.get("/metrics")[1])
    names = await asyncio.to_thread(campaign.run)
    assert {"events", "label watch", "stale claims", "cleanup", "fabric", "publisher"} <= names
    status, text = rig.process.get("/readyz?verbose")
    assert status == 200
    assert "[+]tasks ok: failed unexpectedly and goes on, see the log: " in text
    domain = rig.create_domain()
    daemon = rig.create_daemon_claim(domain)
    answer = await rig.prepare(daemon)
    assert not answer.error
