# SPDX-License-Identifier: Apache-2.0
"""Values of the reference's chart and what becomes of them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from nvdra_api import gates
from nvdra_migrate import rules
from nvdra_migrate.migration import migrate
from nvdra_migrate.outcomes import Status
from nvdra_migrate.reference_values import REFERENCE_VALUES

GPU, CD, CONTROLLER = rules.COMPONENTS


def nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def merged(*values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in values:
        for key, value in each.items():
            both = isinstance(value, dict) and isinstance(found.get(key), dict)
            found[key] = merged(found[key], value) if both else value
    return found


def test_a_whole_copy_of_the_references_defaults_is_complete_and_sets_nothing() -> None:
    copy = merged(*(nested(path, each.default) for path, each in REFERENCE_VALUES.items()))
    result = migrate(copy)
    assert result.values == {}
    assert result.is_complete
    assert {each.path for each in result.outcomes} == set(REFERENCE_VALUES)
    told = {each.path: each.reason for each in result.outcomes}
    assert "here: on 10 % of the nodes at a time" in told["kubeletPlugin.updateStrategy"]


def test_an_empty_file_is_complete() -> None:
    assert migrate({}) == migrate({"controller": {}, "webhook": {"tls": {}}})
    assert migrate({}).is_complete


@pytest.mark.parametrize("path", sorted(REFERENCE_VALUES))
def test_each_value_alone_is_carried_or_named_with_a_reason(path: str) -> None:
    for value in (["x"], {"x": "y"}, "x", 3, True, False, None):
        default = REFERENCE_VALUES[path].default
        if value == default and type(value) is type(default):
            continue
        result = migrate(nested(path, value))
        assert result.outcomes
        for each in result.outcomes:
            assert each.path.startswith(path)
            assert each.settings or each.reason
            assert (each.status is Status.NOT_CARRIED) == bool(each.remedy)


@pytest.mark.parametrize(
    ("path", "value", "settings"),
    [
        ("logVerbosity", 6, {"global": {"logVerbosity": 6}}),
        ("image.pullPolicy", "Always", {"global": {"imagePullPolicy": "Always"}}),
        (
            "namespaceOverride",
            "x",
            {each: {"namespaceOverride": "x"} for each in (*rules.COMPONENTS, "webhook")},
        ),
        (
            "nameOverride",
            "x",
            {
                GPU: {"nameOverride": "x-gpu-plugin"},
                CD: {"nameOverride": "x-cd-plugin"},
                CONTROLLER: {"nameOverride": "x-controller"},
                "webhook": {"nameOverride": "x-webhook"},
            },
        ),
        (
            "controller.containers.computeDomain.env",
            [
                {"name": "ADDITIONAL_NAMESPACES", "value": "a, b,a,"},
                {"name": "MAX_NODES_PER_IMEX_DOMAIN", "value": "36"},
                {"name": "MINE", "value": "1"},
            ],
            {
                "global": {"additionalNamespaces": ["a", "b"]},
                CONTROLLER: {
                    "controller": {
                        "maxNodesPerImexDomain": 36,
                        "env": [{"name": "MINE", "value": "1"}],
                    }
                },
            },
        ),
        ("webhook.enabled", True, {"webhook": {"enabled": True}}),
        ("webhook.tls.mode", "secret", {"webhook": {"tls": {"mode": "secret"}}}),
        ("resources.gpus.enabled", "true", {"resources": {"gpus": {"enabled": True}}}),
        (
            "serviceAccount.name",
            "mine",
            {
                GPU: {"serviceAccount": {"name": "mine-kubeletplugin-gpus"}},
                CD: {"serviceAccount": {"name": "mine-kubeletplugin-compute-domains"}},
                CONTROLLER: {"serviceAccount": {"name": "mine-controller"}},
            },
        ),
    ],
)
def test_a_value_is_carried_to_its_place(path: str, value: Any, settings: dict[str, Any]) -> None:
    result = migrate(nested(path, value))
    assert result.values == settings
    assert result.is_complete


@pytest.mark.parametrize(
    ("repository", "proposal"),
    [
        ("registry.k8s.io/dra-driver-nvidia/gpu", "registry.example.com"),
        ("nvcr.io/nvidia/k8s-dra-driver-gpu", "registry.example.com"),
        ("ghcr.io/nvidia/k8s-dra-driver-gpu", "registry.example.com"),
        ("nvidia/k8s-dra-driver-gpu", "registry.example.com"),
        ("gpu", "registry.example.com"),
        ("registry.team.internal/dra-driver-nvidia/gpu", "registry.team.internal"),
        ("registry.team.internal:5000/mirror/gpu", "registry.team.internal:5000/mirror"),
        ("ghcr.io/team/gpu", "ghcr.io/team"),
    ],
)
def test_a_registry_is_proposed_to_which_the_user_may_push(repository: str, proposal: str) -> None:
    (outcome,) = migrate(nested("image.repository", repository)).outcomes
    assert outcome.remedy.endswith(f"for instance to {proposal}")


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("image.tag", "v0.5.0", "a version of the reference driver"),
        ("image.repository", "r.example.com/x/gpu", "one for each program"),
        ("selectorLabelsOverride", {"a": "b"}, "selectors are"),
        ("maskNvidiaDriverParams", True, "cannot mask"),
        ("resources.gpus.enabled", "false", "takes it for true"),
        ("resources.computeDomains.imex.isolation", "channel", "is not supported"),
        ("kubeletPlugin.metrics.gpuHttpEndpoint", "127.0.0.1:80", "every address"),
        ("kubeletPlugin.containers.gpus.healthcheckPort", 5000, "no gRPC health service"),
        ("controller.replicas", "2", "no number"),
        ("controller", "x", "is no map of values"),
        ("contoller.replicas", 2, "has no such value"),
        (
            "controller.affinity",
            {"podAntiAffinity": [{"matchLabels": {"dra-driver-nvidia-gpu-component": "x"}}]},
            "by a label of the reference driver's",
        ),
        (
            "kubeletPlugin.containers.gpus.env",
            [{"name": "NVIDIA_DRIVER_ROOT", "value": "/x"}],
            "sets this variable itself",
        ),
        ("featureGates", {"MPSSuport": True}, "neither driver has"),
        ("featureGates", {"FabricManagerPartitioning": True}, "lacks the feature"),
        ("featureGates", {"MPSSupport": "yes"}, "is no boolean"),
    ],
)
def test_a_value_without_a_place_is_named(path: str, value: Any, reason: str) -> None:
    result = migrate(nested(path, value))
    assert result.values == {}
    assert not result.is_complete
    (outcome,) = result.outcomes
    assert reason in outcome.reason


def test_accounts_that_must_exist_are_named_although_they_are_carried() -> None:
    result = migrate({"serviceAccount": {"create": False}})
    assert result.values[GPU]["serviceAccount"] == {
        "create": False,
        "name": "default-kubeletplugin-gpus",
    }
    (_, missing) = result.outcomes
    assert "default-controller, default-kubeletplugin-compute-domains" in missing.reason


def test_one_driver_alone_keeps_the_account_of_the_plugins() -> None:
    values = {
        "serviceAccount": {"name": "mine"},
        "resources": {"computeDomains": {"enabled": False}},
    }
    assert migrate(values).values[GPU]["serviceAccount"]["name"] == "mine-kubeletplugin"


def test_the_nearest_name_is_proposed_for_a_mistake() -> None:
    (gate,) = migrate({"featureGates": {"DynamicMig": True}}).outcomes
    (path,) = migrate({"kubeletPlugin": {"tolerationz": []}}).outcomes
    assert gate.remedy == "did you mean DynamicMIG?"
    assert path.remedy == "did you mean kubeletPlugin.tolerations?"


def test_every_gate_is_carried_or_absent() -> None:
    for gate in gates.KNOWN_FEATURES:
        result = migrate({"featureGates": {str(gate): True}})
        assert result.is_complete == (gate not in gates.UNAVAILABLE_FEATURES)


@pytest.mark.parametrize("inside", ["kubeletPlugin", "featureGates"])
def test_many_unknown_names_are_told_without_a_long_search(
    inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40,000 names that are nearly known took two minutes."""
    compared = Counter[str]()

    def count(name: str, known: Sequence[str], n: int) -> list[str]:
        compared[name] += n
        return list(known[:n])

    monkeypatch.setattr("difflib.get_close_matches", count)
    result = migrate({inside: {f"nodeSelectoR{number}": 1 for number in range(5_000)}})
    assert len(result.outcomes) == 5_000
    assert sum(compared.values()) == 100
    assert result.outcomes[0].remedy.startswith("did you mean")
    assert not result.outcomes[-1].remedy.startswith("did you mean")
