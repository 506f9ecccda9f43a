# SPDX-License-Identifier: Apache-2.0
"""What holds for each pod that the charts make: its nodes, and what its containers may use."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

Json = dict[str, Any]
Render = Callable[..., dict[str, Json]]
RenderTest = Callable[..., list[Json]]
Pods = Callable[..., dict[str, Json]]

WEBHOOK = {"webhook": {"enabled": True, "tls": {"mode": "self-managed"}}}
SYSTEM = {"kubernetes.io/os": "linux"}
PARTS = {
    "nvdra-nvdra-gpu-plugin": ("nvdra-gpu-plugin", "kubeletPlugin"),
    "nvdra-nvdra-cd-plugin": ("nvdra-cd-plugin", "kubeletPlugin"),
    "nvdra-nvdra-cd-controller": ("nvdra-cd-controller", "controller"),
    "nvdra-webhook": ("webhook",),
    "nvdra-test": ("global", "testPod"),
}
"""By the name of the pod or of its owner: where its values are."""


@pytest.fixture
def pods(render: Render, render_test: RenderTest) -> Pods:
    def of(values: Json) -> dict[str, Json]:
        objects = render("nvdra", values)
        owners = [*objects["DaemonSet"].values(), *objects["Deployment"].values()]
        found = {owner["metadata"]["name"]: owner["spec"]["template"]["spec"] for owner in owners}
        made = [each for each in render_test("nvdra", values) if each["kind"] == "Pod"]
        return found | {each["metadata"]["name"]: each["spec"] for each in made}

    return of


def with_node_selector(selector: Json) -> Json:
    values = json.loads(json.dumps(WEBHOOK))
    for path in PARTS.values():
        place = values
        for key in path:
            place = place.setdefault(key, {})
        place["nodeSelector"] = selector
    return dict(values)


def resources(pods: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    """Of each container, also of those that the components make; by the name of its pod."""
    for name, pod in pods.items():
        (container,) = pod["containers"]
        yield name, container["resources"]
        environment = {each["name"]: each.get("value", "") for each in container["env"]}
        if daemons := environment.get("CD_DAEMON_RESOURCES"):
            yield "an IMEX daemon", json.loads(daemons)
        if requests := environment.get("MPS_DAEMON_REQUESTS"):
            yield (
                "an MPS daemon",
                {
                    "requests": amounts(requests),
                    "limits": amounts(environment["MPS_DAEMON_LIMITS"]),
                },
            )


def amounts(text: str) -> dict[str, str]:
    return dict(each.split("=") for each in text.split(","))


def test_pods_run_on_linux_whatever_other_labels_their_nodes_must_have(pods: Pods) -> None:
    for selector in ({}, {"pool": "a"}):
        found = pods(with_node_selector(selector))
        assert set(found) == set(PARTS)
        for pod in found.values():
            assert pod["nodeSelector"] == {**SYSTEM, **selector}


def test_a_label_of_the_values_wins(pods: Pods) -> None:
    other = {"kubernetes.io/os": "other"}
    for pod in pods(with_node_selector(other)).values():
        assert pod["nodeSelector"] == other


def test_no_default_of_a_limit_range_takes_the_place_of_what_a_container_may_use(
    pods: Pods,
) -> None:
    gates = {"global": {"featureGates": {"MPSSupport": True}}}
    found = dict(resources(pods({**WEBHOOK, **gates})))
    assert set(found) == {*PARTS, "an IMEX daemon", "an MPS daemon"}
    for name, each in found.items():
        assert each["requests"].keys() == {"cpu", "memory"}, name
        assert "memory" in each["limits"], name
    # Those that users' work depends on have no default limit of CPU either.
    for name in ("an IMEX daemon", "an MPS daemon"):
        assert found[name]["limits"].keys() == {"cpu", "memory"}
