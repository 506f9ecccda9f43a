"""The clusters of the end-to-end tests: labs of two nodes each, with the driver from its chart.

One lab has nodes of eight H100 with gpu.nvidia.com alone, and a collector of traces. The other, for
the tests of compute domains, has two trays of one NVL72 rack, and both drivers as a plain install
makes them, and a collector too. Each is brought up when its first test comes.

`--keep-lab` leaves the labs up for a look at them: `eval "$(lab env --name e2e)"`, `lab status
--name e2e` (or `cd`). The next run begins anew.
"""

import json
import subprocess
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import members
import otlp
import pytest
from cluster import DOMAINS, GPUS, GPUS_ALONE, RELEASE, Cluster, Component
from kubectl import Kubectl
from labtool import LAB, STATE, Lab
from otlp import Receiver

PROFILE = "dgx-h100"
RACK = "gb200-nvl72"
OTLP_PORT = 4318
TEST_S = 120
"""How long a test may take; what a whole session shares is brought up outside of that."""

EXPORT_SOON = [{"name": "OTEL_BSP_SCHEDULE_DELAY", "value": "200"}]
LOG_LINES = 40


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("end to end")
    group.addoption("--kube", default="1.36", help="Kubernetes release of the cluster (1.36)")
    group.addoption("--lab", default="e2e", help="name of the lab that the tests bring up (e2e)")
    group.addoption("--rack", default="cd", help="name of the lab for compute domains (cd)")
    group.addoption("--keep-lab", action="store_true", help="leave the labs up at the end")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_ours = item.path.is_relative_to(Path(__file__).parent)
        if is_ours and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S, func_only=True))


@pytest.fixture(scope="session")
def bare(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A new cluster with the project's images on its nodes, and no driver yet."""
    with lab(request.config, request.config.getoption("--lab"), PROFILE, GPUS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def bare_rack(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two trays of one rack, joined by NVLink, with the project's images and no driver yet."""
    with lab(request.config, request.config.getoption("--rack"), RACK, DOMAINS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rack_collector(bare_rack: Cluster) -> Iterator[Receiver]:
    """Receives the traces of the rack: those of controller, plugins and daemons."""
    with otlp.receiver(bare_rack.host_address, OTLP_PORT) as receiver:
        yield receiver


@pytest.fixture(scope="session")
def rack_settings(rack_collector: Receiver) -> list[str]:
    """How the driver is installed there: plainly, but for where traces go."""
    return [*members.SETTINGS, f"--set-string=global.otlp.endpoint={rack_collector.endpoint}"]


@pytest.fixture(scope="session")
def rack(request: pytest.FixtureRequest, bare_rack: Cluster, rack_settings: list[str]) -> Cluster:
    """The rack with the driver as a plain install makes it, compute domains included."""
    with speaking(request.config):
        print("▸ helm install nvdra, compute domains included", flush=True)
        bare_rack.install(*rack_settings)
    return bare_rack


@contextmanager
def lab(config: pytest.Config, name: str, profile: str, component: Component) -> Iterator[Cluster]:
    """A lab with the project's images on its nodes, until the block is left."""
    with speaking(config):
        say("image", "build")
        if (STATE / name).exists():  # an earlier run kept it, or was killed
            say("down", "--name", name)
        kube = config.getoption("--kube")
        say("up", "--name", name, "--nodes", "2", "--profile", profile, "--kube", kube)
        say("image", "load", "--name", name)
    yield Cluster.of(Lab(name), component)
    if not config.getoption("--keep-lab"):
        with speaking(config):
            say("down", "--name", name)


@pytest.fixture(scope="session")
def collector(bare: Cluster) -> Iterator[Receiver]:
    """Receives the plugins' traces."""
    with otlp.receiver(bare.host_address, OTLP_PORT) as receiver:
        yield receiver


@pytest.fixture(scope="session")
def settings(collector: Receiver) -> list[str]:
    """How the driver is installed for these tests, as flags of helm."""
    env = "nvdra-gpu-plugin.kubeletPlugin.containers.gpus.env"
    return [
        GPUS_ALONE,
        f"--set-string=global.otlp.endpoint={collector.endpoint}",
        f"--set-json={env}={json.dumps(EXPORT_SOON)}",
    ]


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, bare: Cluster, settings: list[str]) -> Cluster:
    """The cluster with the driver installed and ready on every node."""
    with speaking(request.config):
        print("▸ helm install nvdra", flush=True)
        bare.install(*settings)
    return bare


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Kubectl]:
    """A namespace of the test's own, with the driver at work."""
    with cluster.kubectl.fresh_namespace() as kubectl:
        yield kubectl


@pytest.fixture
def team(rack: Cluster) -> Iterator[Kubectl]:
    """A namespace of the test's own in the rack."""
    with rack.kubectl.fresh_namespace() as kubectl:
        yield kubectl


@pytest.fixture
def idle(cluster: Cluster) -> Cluster:
    """The cluster once nobody holds a GPU any more: tests before this one are still going."""
    cluster.kubectl.wait(
        lambda: cluster.kubectl.run("get", "resourceclaims", "-A", "--no-headers") or None,
        "the claims of earlier tests to be gone",
        timeout_s=60,
    )
    return cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what the driver's programs said meanwhile."""
    report = yield
    arguments = getattr(item, "funcargs", {})
    used = arguments.get("cluster") or arguments.get("rack")
    if report.failed and call.when == "call" and isinstance(used, Cluster):
        since = f"--since={int(call.duration) + 2}s"
        chosen = ["-l", f"app.kubernetes.io/instance={RELEASE}", "--max-log-requests=10"]
        log = used.driver.attempt("logs", *chosen, "--prefix", f"--tail={LOG_LINES}", since).stdout
        report.sections.append(("the driver's logs", log))
    return report


def speaking(config: pytest.Config) -> ExitStack:
    """What is printed in the block reaches the terminal: the user waits for it."""
    stack = ExitStack()
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        stack.enter_context(capture.global_and_fixture_disabled())
        print(flush=True)
    return stack


def say(*arguments: str) -> None:
    """Run `lab`, which says itself how far it is."""
    done = subprocess.run([LAB, *arguments], check=False)
    if done.returncode != 0:
        pytest.fail(f"lab {' '.join(arguments)} failed, see above", pytrace=False)
