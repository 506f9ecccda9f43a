# SPDX-License-Identifier: Apache-2.0
"""What fails unexpectedly in one task of the daemon ends neither it nor another task."""

from pathlib import Path
from tempfile import TemporaryDirectory

from nvdra_testing.faults import task_faults
from nvdra_testing.faults.task_campaign import Campaign
from nvdra_testing.node.imex_daemons import Rack

PROGRAM = "nvdra-imex-daemon"


def test_each_exception_in_each_task_leaves_the_others_and_the_node_a_member(rack: Rack) -> None:
    rack.install_driver("node-1")
    with TemporaryDirectory(prefix="nvdra-", dir="/dev/shm") as directory:
        variables = task_faults.environment(Path(directory))
        pod = rack.start_pod("node-1", environ=variables)
        rack.wait_until(pod.is_ready, "the daemon to be ready")
        daemon, children = pod.pid, pod.imex_pids()
        tasks = task_faults.connect(Path(directory), PROGRAM)
        campaign = Campaign(tasks, lambda: pod.get("/metrics")[1])
        names = campaign.run()
        assert {"events", "members", "membership", "nvidia-imex", "imex links"} <= names
        assert pod.pid == daemon
        rack.wait_until(pod.is_ready, "the daemon to be ready again")
        assert len(pod.imex_pids()) == len(children) == 1
        text = pod.get("/readyz?verbose")[1]
        assert "[+]tasks ok: failed unexpectedly and goes on, see the log: " in text
