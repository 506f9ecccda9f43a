# SPDX-License-Identifier: Apache-2.0
"""The scheduler, by the published counters, gives out what NVIDIA's tables say there is room for.

Fifty sequences of claims and releases, sixteen at a time: each has a GPU of its own. At every step
a pod that the tables have room for runs, and one that they have none for is unschedulable; the MIG
devices that exist are those of the pods. `--soak` runs them.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import pytest
from nvdra_testing.cluster import api_versions, workloads
from nvdra_testing.cluster.installation import Cluster, Device
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.hardware.mig_oracle import MigOracle, Place

SEED: Final = 14
ORACLE: Final = MigOracle.of("h100")
WHOLE: Final = "whole"
KINDS: Final = (*ORACLE.profiles, WHOLE)
SEQUENCES, STEPS = 50, 12
RELEASED: Final = 0.3
"""How often a sequence releases what it holds instead of asking for more."""
STEP_S: Final = 90


@dataclass
class Sequence:
    """What one sequence holds of its GPU.

    Attributes:
        number: Seeds its draws, with `SEED`.
        gpu: The GPU that it has to itself.
        held: The names of its pods, and where the MIG device of each is; None for the whole GPU.
    """

    number: int
    gpu: Device
    held: dict[str, Place | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(SEED * 1000 + self.number)

    def has_room(self, kind: str) -> bool:
        """Whether NVIDIA's tables have room for a device of this kind beside what is held."""
        places = [place for place in self.held.values() if place]
        if len(places) < len(self.held):
            return False
        if kind == WHOLE:
            return not places
        starts = ORACLE.profiles[kind].starts
        return any(ORACLE.has_room(places, Place(kind, start)) for start in starts)


@pytest.fixture(scope="module")
def dividing(cluster: Cluster, settings: list[str]) -> Iterator[Cluster]:
    """The cluster, while the driver makes MIG devices for claims."""
    if cluster.release < api_versions.PARTITIONS_SINCE:
        pytest.skip("test_dynamic_mig.py has what is told without partitions")
    cluster.install(*settings, "--set=global.featureGates.DynamicMIG=true")
    cluster.kubectl.wait(
        lambda: None if len(whole_gpus(cluster)) == 8 * len(cluster.nodes()) else "some are not",
        "all GPUs to be published",
    )
    yield cluster
    cluster.install(*settings)


@pytest.mark.soak("takes ten minutes")
@pytest.mark.timeout(3600)
def test_a_pod_runs_if_and_only_if_its_gpu_has_room(
    dividing: Cluster, idle: Cluster, pods: Kubectl
) -> None:
    gpus = whole_gpus(dividing)
    apply_templates(pods, gpus)
    verdicts: Counter[str] = Counter()
    for first in range(0, SEQUENCES, len(gpus)):
        numbers = range(first, min(first + len(gpus), SEQUENCES))
        sequences = [Sequence(number, gpu) for number, gpu in zip(numbers, gpus, strict=False)]
        for step in range(STEPS):
            verdicts += play(pods, sequences, step)
            check_instances(dividing, sequences)
        pods.delete("pods", "--all")
    print(f"seed {SEED}: {dict(verdicts)}")
    assert verdicts["runs"]
    assert verdicts["waits"]


def play(pods: Kubectl, sequences: list[Sequence], step: int) -> Counter[str]:
    """One step of each sequence; the verdicts of the scheduler, each as the tables have it."""
    released = [each for each in sequences if each.held and each.random.random() < RELEASED]
    leaving = [each.random.choice(sorted(each.held)) for each in released]
    if leaving:
        pods.delete("pod", *leaving)
    for each, name in zip(released, leaving, strict=True):
        del each.held[name]
    wait_claims(pods, sum(len(each.held) for each in sequences))
    asking = [each for each in sequences if each not in released]
    kinds = {each.number: each.random.choice(KINDS) for each in asking}
    names = {number: f"s{number}-{step}" for number in kinds}
    manifests = [
        workloads.pod(names[each.number], templates=[template_name(each.gpu, kinds[each.number])])
        for each in asking
    ]
    if manifests:
        pods.apply({"apiVersion": "v1", "kind": "List", "items": manifests})
    for each in asking:
        name, kind = names[each.number], kinds[each.number]
        if each.has_room(kind):
            pods.wait_running(name, timeout_s=STEP_S)
            each.held[name] = place_of(pods, name)
        else:
            workloads.wait_unschedulable(pods, name)
    refused = [name for each in asking if (name := names[each.number]) not in each.held]
    if refused:
        pods.delete("pod", *refused)
    return Counter(runs=len(asking) - len(refused), waits=len(refused), ends=len(leaving))


def wait_claims(pods: Kubectl, count: int) -> None:
    """Wait until the claims of ended pods are gone; the scheduler counts them until then."""

    def others() -> str | None:
        found = pods.run("get", "resourceclaims", "-o", "name").split()
        return None if len(found) == count else f"{len(found)} claims"

    pods.wait(others, f"{count} claims to be left", STEP_S)


def place_of(pods: Kubectl, name: str) -> Place | None:
    """Where the device of a pod is; None for a whole GPU."""
    (claim,) = workloads.claims_of(pods, name)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    _, _, described = str(result["device"]).partition("-mig-")
    if not described:
        return None
    text, _, start = described.rsplit("-", 2)
    (profile,) = (each for each in ORACLE.profiles if in_names(each) == text)
    return Place(profile, int(start))


def in_names(profile: str) -> str:
    """A profile as the names of devices have it."""
    return profile.replace(".", "").replace("+", "-")


def check_instances(cluster: Cluster, sequences: list[Sequence]) -> None:
    """Wait until the MIG devices that exist are those of the pods."""
    expected = {
        (each.gpu.uuid, *place) for each in sequences for place in each.held.values() if place
    }

    def different() -> str | None:
        found = existing(cluster)
        return None if found == expected else f"{found ^ expected}"

    cluster.kubectl.wait(different, "the MIG devices to be those of the pods", STEP_S)


def existing(cluster: Cluster) -> set[tuple[str, str, int]]:
    """UUID of the GPU, profile and first memory slice of every MIG device in the cluster."""
    found: set[tuple[str, str, int]] = set()
    for node in cluster.nodes():
        uuids = {gpu["gpu"]: gpu["uuid"] for gpu in shown(cluster, node)["gpus"]}
        for made in cluster.mig_list(node):
            found.add((uuids[made["gpu"]], made["profile"], made["start"]))
    return found


def shown(cluster: Cluster, node: str) -> Any:
    return json.loads(cluster.simctl(node, "show", "--json"))


def whole_gpus(cluster: Cluster) -> list[Device]:
    return [each for each in cluster.devices() if each.attributes["type"] == "gpu"]


def template_name(gpu: Device, kind: str) -> str:
    return f"{gpu.node}-{gpu.name}-{in_names(kind)}"


def apply_templates(pods: Kubectl, gpus: list[Device]) -> None:
    """A claim template for every kind of device of every GPU."""
    items = [
        workloads.template(template_name(gpu, kind), request(gpu.uuid, kind))
        for gpu in gpus
        for kind in KINDS
    ]
    pods.apply({"apiVersion": "v1", "kind": "List", "items": items})


def request(uuid: str, kind: str) -> dict[str, Any]:
    """A request for the whole GPU, or for a MIG device of it."""
    if kind == WHOLE:
        return workloads.gpus("gpu", workloads.is_whole_gpu(uuid))
    return workloads.mig_device_of(uuid, kind)
