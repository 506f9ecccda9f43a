"""`make demo` shows what it promises."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_testing.cluster import api_versions
from nvdra_testing.cluster.installation import Cluster

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
    cluster.kubectl.delete("namespace", "demo")
    cluster.install(*settings)
    assert done.returncode == 0


def test_the_demo_shows_nodes_devices_what_containers_see_and_a_trace(
    cluster: Cluster, told: str
) -> None:
    lines = told.splitlines()
    for node in cluster.nodes():
        assert any(node in line and "Ready" in line for line in lines)
    assert sum("NVIDIA H100 80GB HBM3" in line and "pci0000:" in line for line in lines) == 16
    for file in QUICKSTARTS.glob("*.yaml"):
        title = file.read_text().splitlines()[0].removeprefix("# ")
        assert title in told
        assert file.name in told
    has_extended = cluster.release >= api_versions.EXTENDED_RESOURCES_SINCE
    assert sum("UUID: GPU-" in line for line in lines) == 9 + has_extended
    assert sum("/dev/nvidiactl" in line for line in lines) == 8 + has_extended
    assert "cannot allocate all claims" in told
    assert ("Insufficient nvidia.com/gpu" in told) == (not has_extended)
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
