# SPDX-License-Identifier: Apache-2.0
"""Rules: what becomes of a value, given where it was. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Final

from nvdra_api import gates

from nvdra_migrate.near_names import NearNames
from nvdra_migrate.outcomes import Outcome, carried, not_carried, unneeded

Values = Mapping[str, Any]

Rule = Callable[[str, Any, Values], Iterable[Outcome]]
"""The outcomes of the value at a path, given the whole values file."""

GPU, CD, CONTROLLER = "nvdra-gpu-plugin", "nvdra-cd-plugin", "nvdra-cd-controller"
COMPONENTS: Final = (GPU, CD, CONTROLLER)

_ADDRESS: Final = re.compile(r"(0\.0\.0\.0|\[::\])?:[1-9][0-9]{0,4}")
_OF_VENDORS: Final = (
    "registry.k8s.io/",
    "nvcr.io/nvidia/",
    "ghcr.io/nvidia/",
    "docker.io/nvidia/",
)
"""Beginnings of registries from which the reference is pulled, and to which no user can push."""
_REFERENCE_LABEL: Final = "-component"
_SHORT: Final = {GPU: "gpu-plugin", CD: "cd-plugin", CONTROLLER: "controller"}


def at(values: Values, path: str, default: Any = None) -> Any:
    """The value at a dotted path, or the default if it is not set."""
    found: Any = values
    for key in path.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return default
        found = found[key]
    return found


def copied(*places: str) -> Rule:
    """The value is the same at these places."""
    return lambda path, value, _: [carried(path, dict.fromkeys(places, value))]


def switch(*places: str) -> Rule:
    """A boolean."""

    def rule(path: str, value: Any, _: Values) -> list[Outcome]:
        if isinstance(value, bool) or value is None:
            return [carried(path, dict.fromkeys(places, value))]
        if value == "true":
            return [carried(path, dict.fromkeys(places, True), "it was quoted")]
        return [
            not_carried(
                path,
                f"{value!r} is no boolean: the reference's chart takes it for "
                f"{'true' if value else 'false'}",
                f"set {' and '.join(places)} to true or false, without quotes",
            )
        ]

    return rule


def address(*places: str) -> Rule:
    """host:port on which a component listens."""

    def rule(path: str, value: Any, _: Values) -> list[Outcome]:
        if isinstance(value, str) and _ADDRESS.fullmatch(value):
            return [carried(path, dict.fromkeys(places, value))]
        return [
            not_carried(
                path,
                "the port serves the kubelet's probes too, so that it listens on every address "
                "of the pod",
                f"set {' and '.join(places)} to :PORT, or disable the metrics only",
            )
        ]

    return rule


def absent(reason: str, remedy: str) -> Rule:
    """The chart nvdra has nothing like it."""
    return lambda path, *_: [not_carried(path, reason, remedy)]


def obsolete(reason: str) -> Rule:
    """The chart nvdra does the same without it."""
    return lambda path, *_: [unneeded(path, reason)]


def one_of(place: str, *allowed: str, remedy: str) -> Rule:
    """A word of a list."""

    def rule(path: str, value: Any, _: Values) -> list[Outcome]:
        if value in allowed:
            return [carried(path, {place: value})]
        return [not_carried(path, f"{value!r} is not supported", remedy)]

    return rule


def count(place: str) -> Rule:
    """A whole number, at least 1."""

    def rule(path: str, value: Any, _: Values) -> list[Outcome]:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return [carried(path, {place: value})]
        return [
            not_carried(
                path, f"{value!r} is no number of at least 1", f"set {place} to such a number"
            )
        ]

    return rule


def names(key: str) -> Rule:
    """A name of objects: the reference has one, each component here needs its own."""

    def rule(path: str, value: Any, _: Values) -> list[Outcome]:
        short = {**_SHORT, "webhook": "webhook"}
        own = {f"{each}.{key}": f"{value}-{name}" for each, name in short.items()}
        return [carried(path, own, "each component needs a name of its own")]

    return rule


def account(path: str, value: Any, values: Values) -> Iterable[Outcome]:
    """`serviceAccount.create` and `serviceAccount.name`, which decide together."""
    accounts = _accounts(values)
    named = {f"{each}.serviceAccount.name": name for each, name in accounts.items()}
    if path.endswith(".name"):
        if len(set(accounts.values())) < len(COMPONENTS):
            return [carried(path, named, "it is the whole name here")]
        remark = (
            "the two plugins need an account each, since each may write only the ResourceSlices "
            "of its own driver"
        )
        return [carried(path, named, remark)]
    if value is not False:
        return switch(*(f"{each}.serviceAccount.create" for each in COMPONENTS))(
            path, value, values
        )
    never = {f"{each}.serviceAccount.create": False for each in COMPONENTS}
    existing = ", ".join(sorted(set(accounts.values())))
    return [
        carried(path, never | named, "the roles are still made; rbac.create=false leaves them out"),
        not_carried(
            path,
            f"the accounts must exist before the installation: {existing}",
            "create each with kubectl create serviceaccount",
        ),
    ]


def _accounts(values: Values) -> dict[str, str]:
    base = at(values, "serviceAccount.name") or "default"
    plugin = f"{base}-kubeletplugin"
    is_alone = {
        GPU: at(values, "resources.computeDomains.enabled") is False,
        CD: at(values, "resources.gpus.enabled") is False,
    }
    if any(is_alone.values()):
        return {GPU: plugin, CD: plugin, CONTROLLER: f"{base}-controller"}
    return {
        GPU: f"{plugin}-gpus",
        CD: f"{plugin}-compute-domains",
        CONTROLLER: f"{base}-controller",
    }


def repository(path: str, value: Any, _: Values) -> Iterable[Outcome]:
    """The reference has one image, nvdra one for each program."""
    registry = str(value).rpartition("/")[0].removesuffix("/dra-driver-nvidia")
    has_host = any(sign in registry.partition("/")[0] for sign in ".:")
    is_own = has_host and not f"{registry}/".startswith(_OF_VENDORS)
    return [
        not_carried(
            path,
            "it names the reference driver's image; nvdra has one for each program",
            f"copy the five images of nvdra to a registry and set global.imageRegistry, for "
            f"instance to {registry if is_own else 'registry.example.com'}",
        )
    ]


_GATES: Final = tuple(sorted([*map(str, gates.KNOWN_FEATURES), *gates.AGGREGATES]))


def feature_gates(path: str, value: Any, _: Values) -> Iterable[Outcome]:
    """Each gate by itself."""
    if not isinstance(value, Mapping):
        return [not_carried(path, "it is no map of gates", "set global.featureGates")]
    near = NearNames(_GATES)
    return [_gate(f"{path}.{name}", name, on, near) for name, on in value.items()]


def _gate(path: str, name: str, on: Any, near: NearNames) -> Outcome:
    if name not in _GATES:
        nearest = near.nearest(name)
        remedy = f"did you mean {nearest}?" if nearest else f"the gates are {', '.join(_GATES)}"
        return not_carried(path, "neither driver has this feature gate", remedy)
    if on not in (True, False, "true", "false"):
        return not_carried(
            path, f"{on!r} is no boolean", f"set global.featureGates.{name} to true or false"
        )
    is_on = on in (True, "true")
    if is_on and name in gates.UNAVAILABLE_FEATURES:
        return not_carried(
            path,
            "this release of nvdra lacks the feature, so that the gate would have no effect",
            "keep the reference driver where the feature is used",
        )
    return carried(
        path, {f"global.featureGates.{name}": is_on}, "it was quoted" if isinstance(on, str) else ""
    )


def environment(place: str, own: Set[str], moved: Mapping[str, Rule] | None = None) -> Rule:
    """Additional variables of a container.

    Args:
        place: The list of variables in the chart nvdra.
        own: Variables that the chart nvdra sets itself.
        moved: Rules for variables that are values of the chart nvdra.
    """
    rules = moved or {}

    def rule(path: str, value: Any, values: Values) -> list[Outcome]:
        if not isinstance(value, list):
            return [not_carried(path, "it is no list of variables", f"set {place}")]
        outcomes: list[Outcome] = []
        kept = []
        for at_index, each in enumerate(value):
            name = each.get("name") if isinstance(each, Mapping) else None
            own_path = f"{path}[{at_index if name is None else name}]"
            if isinstance(name, str) and name in rules and "value" in each:
                outcomes += rules[name](own_path, each["value"], values)
            elif isinstance(name, str) and name in own:
                outcomes.append(
                    not_carried(
                        own_path,
                        "the chart nvdra sets this variable itself",
                        "leave it out, or set the value that it is made from",
                    )
                )
            else:
                kept.append(each)
        if kept:
            outcomes.append(carried(path, {place: kept}))
        return outcomes

    return rule


def number_in_text(place: str) -> Rule:
    """A number in the value of a variable."""
    as_number = count(place)

    def rule(path: str, value: Any, values: Values) -> Iterable[Outcome]:
        text = str(value)
        return as_number(path, int(text) if text.isdecimal() else value, values)

    return rule


def list_in_text(place: str) -> Rule:
    """Names with commas between them, in the value of a variable."""

    def rule(path: str, value: Any, _: Values) -> list[Outcome]:
        items = [item.strip() for item in str(value).split(",")]
        return [carried(path, {place: list(dict.fromkeys(filter(None, items)))})]

    return rule


def affinity(*places: str) -> Rule:
    """Rules about nodes are the same; rules about the reference's own pods match nothing here."""

    def rule(path: str, value: Any, _: Values) -> list[Outcome]:
        if _selects_reference_pods(value):
            return [
                not_carried(
                    path,
                    "it selects pods by a label of the reference driver's, which no pod of nvdra "
                    "has",
                    f"set {' and '.join(places)}, with app.kubernetes.io/name: CHART instead",
                )
            ]
        return [carried(path, dict.fromkeys(places, value))]

    return rule


def _selects_reference_pods(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(
            str(key).endswith(_REFERENCE_LABEL)
            or (key == "key" and str(each).endswith(_REFERENCE_LABEL))
            or _selects_reference_pods(each)
            for key, each in value.items()
        )
    return isinstance(value, list) and any(map(_selects_reference_pods, value))


def health_port(port_setting: str) -> Rule:
    """The port of the gRPC health service, which is off if it is not positive."""

    def rule(path: str, value: Any, _: Values) -> list[Outcome]:
        if isinstance(value, int) and value <= 0:
            return [unneeded(path, "there is no gRPC health service")]
        return [
            not_carried(
                path,
                "there is no gRPC health service",
                f"ask /healthz and /readyz on the port of {port_setting}",
            )
        ]

    return rule
