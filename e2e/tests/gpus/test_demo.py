# SPDX-License-Identifier: Apache-2.0
"""`make demo` shows what it promises."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_testing.cluster import api_versions, device_health
from nvdra_testing.cluster.installation import Cluster

from e2e.demo import quickstarts

REPOSITORY = Path(__file__).parents[3]
QUICKSTARTS = REPOSITORY / "e2e/quickstarts"


@pytest.fixture
def told(cluster: Cluster, settings: list[str]) -> Iterator[str]:
    """The demo's output; afterwards the driver is as the other tests need it."""
    demo = [sys.executable, "-m", "e2e.demo", "--name", cluster.lab.name]
    done = subprocess.run(
        demo,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    yield done.stdout
    cluster.install(*settings)
    cluster.kubectl.delete("namespace", "demo", timeout_s=180)
    assert done.returncode == 0


@pytest.mark.timeout(300, func_only=True)
def test_the_demo_shows_nodes_devices_what_containers_see_and_a_trace(
    cluster: Cluster, told: str
) -> None:
    lines = told.splitlines()
    for node in cluster.nodes():
        assert any(node in line and "Ready" in line for line in lines)
    assert sum("NVIDIA H100 80GB HBM3" in line and "pci0000:" in line for line in lines) == 16
    for file in QUICKSTARTS.glob("*.yaml"):
        is_told = file.name not in (*quickstarts.NOT_TOLD, quickstarts.VIRTUAL_MACHINE)
        if not is_told or not quickstarts.is_served_by(cluster.release, file.name):
            continue
        title = file.read_text().splitlines()[0].removeprefix("# ")
        assert title in told
        assert file.name in told
    has_extended = cluster.release >= api_versions.EXTENDED_RESOURCES_SINCE
    whole_gpus, _, later = told.partition("The trace of a claim")
    assert whole_gpus.count("UUID: GPU-") == 9 + has_extended
    assert sum("/dev/nvidiactl" in line for line in lines) == 8 + has_extended
    assert "cannot allocate all claims" in told
    assert ("Insufficient nvidia.com/gpu" in told) == (not has_extended)
    assert "in-turns-a and in-turns-b: Running" in later
    assert any(line.split()[-2:] == ["Long", "|"] for line in lines), "while the pods run"
    assert any(line.split()[-2:] == ["Default", "|"] for line in lines), "after them"
    assert "None is offered here: that takes a lab whose GPUs can change drivers" in later
    assert "mps-a and mps-b: Running" in later
    assert later.count("66 multiprocessors, 10240 MiB to allocate") == 2
    assert later.count("deployment.apps/mps-control-daemon-") == 1, "while the pods run"
    assert [line.split(", ")[-1] for line in lines if line.strip().startswith("GPU-")] == [
        "Exclusive_Process",
        "Default",
    ]
    if cluster.release >= api_versions.PARTITIONS_SINCE:
        assert later.count("UUID: MIG-") == 1 + 4
        assert later.count("✓ no MIG device is left") == 2
    if cluster.release >= device_health.HAS_TAINTS:
        assert '"key": "gpu.nvidia.com/xid"' in told
        assert "its taint is gone" in told
    if cluster.release >= device_health.SHOWS_HEALTH:
        assert '"health": "Unhealthy"' in told
    for step in ("schedule", "prepare", "fetch claim", "verify devices", "commit state"):
        assert any(line.strip().startswith(step) and "█" in line for line in lines)
    assert "the container was Running" in told
    assert "life of the compute domain" in told
    for node in cluster.nodes():
        assert f"member {node}" in told
    for step in ("reconcile", "label node", "schedule daemon", "start daemon", "wait domain"):
        assert any(line.strip().startswith(step) and "█" in line for line in lines)
    assert any("ring" in line and "NotReady" in line for line in lines), "before its pods run"
    assert any("ring" in line and " Ready" in line for line in lines), "while they run"
    assert "nothing is left of it" in told
    assert "lab down" in told
