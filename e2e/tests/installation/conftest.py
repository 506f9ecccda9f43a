# SPDX-License-Identifier: Apache-2.0
"""A lab in which nvdra is installed as its users do: `helm install`, both drivers, the webhook.

The API server writes an audit log. The tests follow one another in the order of `ORDER`, because
an installation has a beginning and an end.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.cluster_snapshot import ClusterSnapshot
from nvdra_testing.cluster.installation import (
    CHART,
    GPU_PLUGIN,
    LAB_SETTINGS,
    NAMESPACE,
    RELEASE,
    Cluster,
)
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.telemetry import otlp_receiver

ORDER = (
    "installed",
    "quickstarts",
    "webhook",
    "metrics",
    "rare_requests",
    "used_permissions",
    "given_certificate",
    "cert_manager",
    "uninstalled",
)
GATES = ("DynamicMIG", "MPSSupport", "NVMLDeviceHealthCheck", "TimeSlicingSettings")
WEBHOOK = ("webhook.enabled=true", "webhook.tls.mode=self-managed", "webhook.replicas=2")
PATIENCE = (
    "webhook.timeoutSeconds=30",
    "webhook.warnings.timeoutSeconds=30",
    "webhook.shutdownGracePeriod=15s",
)
"""Any process of a busy machine may pause for seconds, also the one that routes to a replica."""
OTLP_PORT = 4318
WAIT_S = 180
"""How long helm may wait where four groups of tests share two cores."""


@dataclass(frozen=True)
class Installed:
    """The cluster after `helm install`.

    Attributes:
        cluster: The cluster.
        before: What was there before.
        took_s: Seconds until helm said that everything is ready.
        notes: What helm printed.
    """

    cluster: Cluster
    before: ClusterSnapshot
    took_s: float
    notes: str


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files into order, and the tests of each into that of its lines."""
    here = Path(__file__).parent
    places = [number for number, item in enumerate(items) if item.path.parent == here]
    ours = sorted((items[number] for number in places), key=_place)
    for number, item in zip(places, ours, strict=True):
        items[number] = item


def _place(item: pytest.Item) -> tuple[int, int]:
    name = item.path.stem.removeprefix("test_")
    return ORDER.index(name), item.location[1] or 0


@pytest.fixture(scope="session")
def installed(
    request: pytest.FixtureRequest,
    run_lab: Callable[..., AbstractContextManager[Cluster]],
) -> Iterator[Installed]:
    """A new lab, and in it the release."""
    name = request.config.getoption("--lab")
    profile = compute_domains.RACK_PROFILE
    with run_lab(name, profile, GPU_PLUGIN, "--audit-log") as cluster, ExitStack() as stack:
        before = ClusterSnapshot.take(cluster)
        collector = stack.enter_context(otlp_receiver.receiver(cluster.host_address, OTLP_PORT))
        settings = [
            *(f"global.{name}={value}" for name, value in LAB_SETTINGS.items()),
            *(f"global.featureGates.{gate}=true" for gate in GATES),
            f"nvdra-cd-controller.controller.maxNodesPerImexDomain={len(cluster.nodes())}",
            f"global.otlp.endpoint={collector.endpoint}",
            "nvdra-cd-controller.daemon.networkPolicy.enabled=true",  # no plugin enforces it here
            *WEBHOOK,
            *PATIENCE,
        ]
        where = ("--namespace", NAMESPACE, "--create-namespace", "--wait", f"--timeout={WAIT_S}s")
        flags = [f"--set={setting}" for setting in settings]
        started = time.monotonic()
        notes = cluster.helm("install", RELEASE, str(CHART), *where, *flags)
        yield Installed(cluster, before, time.monotonic() - started, notes)


@pytest.fixture
def cluster(installed: Installed) -> Cluster:
    """The cluster with the release."""
    return installed.cluster


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Kubectl]:
    """A namespace for one test."""
    with cluster.kubectl.fresh_namespace() as kubectl:
        yield kubectl
