# SPDX-License-Identifier: Apache-2.0
"""The clusters of the end-to-end tests: labs of two nodes each, with the driver from its chart.

One lab has nodes with eight H100, with gpu.nvidia.com only. The other one, for ComputeDomains, has
two trays of one NVL72 rack and both drivers, as in a default installation. Each has a collector of
traces, and is started for the first test that needs it.

The option `--lab` is the name of the first one; the name of the other one ends with `-rack`. Groups
that run side by side have different names. `--keep-lab` leaves the labs up for inspection: `eval
"$(lab env --name e2e-gpus)"`, `lab status --name e2e-domains-rack`. The next run starts new labs.
"""

import json
import subprocess
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from nvdra_lab import environment
from nvdra_lab.artifacts import images
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.installation import (
    CD_PLUGIN,
    GPU_PLUGIN,
    GPUS_ONLY,
    RELEASE,
    Cluster,
    Component,
)
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.lab_command import LAB_PROGRAM, STATE_DIR, Lab
from nvdra_testing.telemetry import otlp_receiver
from nvdra_testing.telemetry.otlp_receiver import Receiver

PROFILE = "dgx-h100"
GPU_IMAGES = ("nvdra-gpu-plugin", "python")
OTLP_PORT = 4318
TEST_S = 300
"""The time limit of a test; fixtures of the session are not included. It is so long that a wait
inside ends before, and says what is missing.
"""

EXPORT_SOON = [{"name": "OTEL_BSP_SCHEDULE_DELAY", "value": "200"}]
LOG_LINES = 40


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("end to end")
    group.addoption("--kube", default="1.36", help="Kubernetes release of the cluster (1.36)")
    group.addoption("--runtime", help="the nodes' container runtime (the lab's default)")
    group.addoption("--lab", default="e2e", help="name of the lab that the tests bring up (e2e)")
    group.addoption("--nodes", type=int, default=2, help="nodes of a lab (2)")
    group.addoption("--pod-addresses", type=int, help="addresses of each node for its pods (253)")
    group.addoption(
        "--peer", type=Path, metavar="ARCHIVE", help="an image of the reference driver, as OCI"
    )
    group.addoption("--keep-lab", action="store_true", help="leave the labs up at the end")
    group.addoption("--pods", type=int, help="pods in the week of a node, with all its incidents")
    group.addoption("--week-seed", type=int, default=12, help="draws the week of a node (12)")
    group.addoption("--week-report", metavar="PATH", help="write the week to PATH.json and PATH.md")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_ours = item.path.is_relative_to(Path(__file__).parent)
        if is_ours and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S, func_only=True))


@pytest.fixture(scope="session")
def bare(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A new cluster with the images for gpu.nvidia.com on its nodes, without the driver."""
    name = request.config.getoption("--lab")
    with lab(request.config, name, PROFILE, GPU_PLUGIN, image_names=GPU_IMAGES) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def bare_rack(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two trays of one rack, connected by NVLink.

    With the project's images and without the driver.
    """
    name = f"{request.config.getoption('--lab')}-rack"
    with lab(request.config, name, compute_domains.RACK_PROFILE, CD_PLUGIN) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rack_collector(bare_rack: Cluster) -> Iterator[Receiver]:
    """Receives the traces of controller, plugins and daemons in the rack."""
    with otlp_receiver.receiver(bare_rack.host_address, OTLP_PORT) as receiver:
        yield receiver


@pytest.fixture(scope="session")
def rack_settings(rack_collector: Receiver, request: pytest.FixtureRequest) -> list[str]:
    """The helm flags for the rack: the defaults, and the endpoint for traces.

    A domain has room for as many nodes as there are: IMEX says UP once every node of its list is
    connected.
    """
    room = f"maxNodesPerImexDomain={request.config.getoption('--nodes')}"
    return [
        f"--set=nvdra-cd-controller.controller.{room}",
        f"--set-string=global.otlp.endpoint={rack_collector.endpoint}",
    ]


@pytest.fixture(scope="session")
def rack(
    request: pytest.FixtureRequest, bare_rack: Cluster, rack_settings: list[str]
) -> Iterator[Cluster]:
    """The rack with a default installation of the driver, including ComputeDomains.

    After all tests, nothing of any domain may be left in the API and on the nodes.
    """
    with speaking(request.config):
        print("▸ helm install nvdra, compute domains included", flush=True)
        bare_rack.install(*rack_settings, wait_s=120 + 5 * request.config.getoption("--nodes"))
    yield bare_rack
    compute_domains.wait_nothing_left(bare_rack)


@pytest.fixture(scope="session")
def run_lab(pytestconfig: pytest.Config) -> Callable[..., AbstractContextManager[Cluster]]:
    """Runs another lab: `lab` without its first argument."""
    return partial(lab, pytestconfig)


@contextmanager
def lab(
    config: pytest.Config,
    name: str,
    profile: str,
    component: Component,
    *flags: str,
    image_names: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Run a lab with the project's images on its nodes until the block is left.

    Args:
        config: The options of the tests.
        name: The lab's name.
        profile: The hardware of each node.
        component: What its tests are about.
        *flags: More flags of `lab up`.
        image_names: Which of the project's images; all by default. Each takes some seconds.
    """
    with speaking(config):
        say("image", "build")
        if (STATE_DIR / name).exists():  # an earlier run left it, or was killed
            say("down", "--name", name)
        kube = config.getoption("--kube")
        nodes = str(config.getoption("--nodes"))
        if (addresses := config.getoption("--pod-addresses")) is not None:
            flags = (*flags, "--pod-addresses", str(addresses))
        if (runtime := config.getoption("--runtime")) is not None:
            flags = (*flags, "--runtime", runtime)
        say("up", "--name", name, "--nodes", nodes, "--profile", profile, "--kube", kube, *flags)
        archives = [images.archive(environment.read(), each) for each in image_names]
        say("image", "load", "--name", name, *map(str, archives))
    yield Cluster.from_lab(Lab(name), component)
    if not config.getoption("--keep-lab"):
        with speaking(config):
            say("down", "--name", name)


@pytest.fixture(scope="session")
def collector(bare: Cluster) -> Iterator[Receiver]:
    """Receives the plugins' traces."""
    with otlp_receiver.receiver(bare.host_address, OTLP_PORT) as receiver:
        yield receiver


@pytest.fixture(scope="session")
def settings(collector: Receiver) -> list[str]:
    """The helm flags with which the driver is installed for these tests."""
    env = "nvdra-gpu-plugin.kubeletPlugin.containers.gpus.env"
    return [
        GPUS_ONLY,
        f"--set-string=global.otlp.endpoint={collector.endpoint}",
        f"--set-json={env}={json.dumps(EXPORT_SOON)}",
    ]


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, bare: Cluster, settings: list[str]) -> Cluster:
    """The cluster with the driver installed and ready on all nodes."""
    with speaking(request.config):
        print("▸ helm install nvdra", flush=True)
        bare.install(*settings)
    return bare


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Kubectl]:
    """A namespace for one test in the cluster with the driver."""
    with cluster.kubectl.fresh_namespace() as kubectl:
        yield kubectl


@pytest.fixture
def team(rack: Cluster) -> Iterator[Kubectl]:
    """A namespace for one test in the rack."""
    with rack.kubectl.fresh_namespace() as kubectl:
        yield kubectl


@pytest.fixture
def idle(cluster: Cluster) -> Cluster:
    """The cluster after the claims of earlier tests are gone."""
    cluster.wait_idle()
    return cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the driver's components to the report of a failed test."""
    report = yield
    arguments = getattr(item, "funcargs", {})
    used = arguments.get("cluster") or arguments.get("rack")
    if report.failed and call.when == "call" and isinstance(used, Cluster):
        since = f"--since={int(call.duration) + 2}s"
        chosen = ["-l", f"app.kubernetes.io/instance={RELEASE}", "--max-log-requests=10"]
        log = used.driver_namespace.run_unchecked(
            "logs", *chosen, "--prefix", f"--tail={LOG_LINES}", since
        ).stdout
        report.sections.append(("the driver's logs", log))
    return report


def speaking(config: pytest.Config) -> ExitStack:
    """Output in the block goes to the terminal, because the user waits for it."""
    stack = ExitStack()
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        stack.enter_context(capture.global_and_fixture_disabled())
        print(flush=True)
    return stack


def say(*arguments: str) -> None:
    """Run `lab`, which prints its progress."""
    done = subprocess.run([LAB_PROGRAM, *arguments], check=False)
    if done.returncode != 0:
        pytest.fail(f"lab {' '.join(arguments)} failed, see above", pytrace=False)
