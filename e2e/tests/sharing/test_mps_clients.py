# SPDX-License-Identifier: Apache-2.0
"""What a container that shares a GPU by MPS can do to others: to its node, to other claims."""

from uuid import uuid4

import pytest
from nvdra_testing.cluster import mps_daemons, workloads
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NODE = "node-1"
DAEMON_PIPE = "/run/nvidia-mps"
CHANGES = """
import errno, os

PIPE = "/tmp/nvidia-mps/"
changes = {
    "file": lambda: open(PIPE + "new", "w"),
    "directory": lambda: os.mkdir(PIPE + "new"),
    "link": lambda: os.symlink("/etc/passwd", PIPE + "new"),
    "hard link": lambda: os.link(PIPE + "control_lock", PIPE + "new"),
    "lock": lambda: open(PIPE + "control_lock", "w"),
    "removal": lambda: os.unlink(PIPE + "control"),
    "mode": lambda: os.chmod(PIPE + "control", 0o777),
}
assert os.getuid() == 0
for name, change in changes.items():
    try:
        change()
    except OSError as error:
        assert error.errno == errno.EROFS, (name, error)
        print(name)
"""
NEST = """
import os, sys

directory = os.open(sys.argv[1], os.O_RDONLY)
for _ in range(3000):
    os.mkdir("x", dir_fd=directory)
    directory, outer = os.open("x", os.O_RDONLY, dir_fd=directory), directory
    os.close(outer)
"""


@pytest.mark.timeout(240, func_only=True)
def test_the_root_of_a_container_changes_nothing_in_the_directory_of_its_daemon(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    device = with_all_gates.device(NODE, "gpu-2")
    mps_daemons.apply_claim(pods, "shared", device.uuid)
    pods.apply(mps_daemons.python_pod(workloads.pod("p", claims=["shared"])))
    pods.wait_running("p")
    refused = pods.exec("p", "python3", "-c", CHANGES).splitlines()
    assert refused == ["file", "directory", "link", "hard link", "lock", "removal", "mode"]
    assert mps_daemons.cuda_view(pods, "p") == mps_daemons.HALF_OF_AN_H100
    (daemon,) = mps_daemons.daemon_pods(with_all_gates)
    mounts = with_all_gates.driver_namespace.exec(
        daemon["metadata"]["name"], "cat", "/proc/self/mountinfo"
    )
    flags = {line.split()[4]: line.split()[5].split(",") for line in mounts.splitlines()}
    assert {"nosuid", "nodev", "noexec", "nosymfollow"} <= set(flags[DAEMON_PIPE])
    pods.exec("p", "sh", "-c", "echo quit | nvidia-cuda-mps-control")
    mps_daemons.wait_started(with_all_gates, restarts=1)
    assert mps_daemons.cuda_view(pods, "p") == mps_daemons.HALF_OF_AN_H100
    pods.delete("pod", "p")
    mps_daemons.wait_gone(with_all_gates, NODE)


@pytest.mark.timeout(240, func_only=True)
def test_what_a_container_has_left_harms_no_other_claim(
    with_all_gates: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    """As one of a claim can have left it that an earlier version of the driver has prepared."""
    left = f"{mps_daemons.DIRECTORY}/{uuid4()}-abcde/pipe"
    with_all_gates.exec_on_node(NODE, "mkdir", "-p", left)
    with_all_gates.exec_on_node(NODE, "python3", "-c", NEST, left)
    device = with_all_gates.device(NODE, "gpu-2")
    before = with_all_gates.plugin_pod(NODE)
    mps_daemons.apply_claim(pods, "shared", device.uuid)
    pods.apply(mps_daemons.python_pod(workloads.pod("p", claims=["shared"])))
    pods.wait_running("p")
    pods.delete("pod", "p")
    mps_daemons.wait_gone(with_all_gates, NODE)
    (status,) = with_all_gates.driver_namespace.get("pod", before)["status"]["containerStatuses"]
    assert status["restartCount"] == 0
