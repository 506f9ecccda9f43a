# SPDX-License-Identifier: Apache-2.0
"""Warnings for settings that are allowed and may surprise. kubectl shows them to the user.

Source: docs/reference/webhook.md, "Intended differences".
"""

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from nvdra_api import names, texts
from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import is_uid
from nvdra_api.v1beta1 import (
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    DeviceConfig,
    GpuConfig,
    MigDeviceConfig,
    VfioDeviceConfig,
    sharing,
)

from nvdra_webhook.admission import requests, review
from nvdra_webhook.admission.claim import ConfigEntry, Devices, Exact, Selector
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.admission.requests import Asked, ValidConfig

MAX_WARNINGS: Final = 16
"""The API server cuts all warnings of an answer at 4096 characters."""
_MAX_SHOWN: Final = 60
"""Characters of a user's text in a warning; the API server cuts each at 256."""
_MAX_NAME: Final = 253
"""The longest name of a class in Kubernetes. Comparing longer texts takes quadratic time."""
_MAX_EXPRESSION: Final = 10 * 1024
"""The longest expression that the API server allows."""

_ATTRIBUTE: Final = r"""device\.attributes\[\s*["']gpu\.nvidia\.com["']\s*\]\.profile\s*"""
_PROFILE: Final = re.compile(_ATTRIBUTE + r"""==\s*["']([^"']+)["']""")
_ONE_OF_PROFILES: Final = re.compile(_ATTRIBUTE + r"""in\s*\[([^\]]+)\]""")
_TEXT: Final = re.compile(r"""["']([^"']+)["']""")


def of_config(config: DeviceConfig) -> Iterator[tuple[str, str]]:
    """Yield what is useless in a valid config: the path below the config, and a text."""
    if isinstance(config, GpuConfig | MigDeviceConfig) and config.sharing is not None:
        is_mig = isinstance(config, MigDeviceConfig)
        if is_mig and config.sharing.strategy == sharing.TIME_SLICING:
            yield ".sharing.strategy", "TimeSlicing has no effect on MIG devices"
        if config.mps is not None and config.mps.default_active_thread_percentage == 0:
            yield (
                ".sharing.mpsConfig.defaultActiveThreadPercentage",
                "0 leaves clients no threads of the GPU; leave it out for all of them",
            )
    elif isinstance(config, ComputeDomainChannelConfig | ComputeDomainDaemonConfig):
        domain = config.domain_id
        if not is_uid(domain):
            yield (
                ".domainID",
                f"{_shown(domain)} is not the UID of a ComputeDomain, so pods with this claim will "
                "not start; use the claim template that the ComputeDomain names",
            )


def of_devices(
    devices: Devices,
    path: str,
    valid: Mapping[int, ValidConfig],
    cluster: ClusterNames,
    gates: FeatureGates,
) -> Iterator[str]:
    """Yield what requests and configs say that does not fit together, or not the cluster.

    Args:
        devices: What the claim asks for.
        path: Its field in the object.
        valid: The configs that are valid, by their index.
        cluster: What is known of the cluster.
        gates: The feature gates of the plugins.
    """
    own = [
        (index, entry)
        for index, entry in enumerate(devices.config or ())
        if entry.requests
        and entry.opaque is not None
        and entry.opaque.driver in (names.GPU_DRIVER, names.COMPUTE_DOMAIN_DRIVER)
    ]
    if own:
        yield from _unknown_requests(devices, path, own)
        yield from _overridden(path, own)
    if valid:
        kinds = {index: config.kind for index, config in valid.items()}
        requested = requests.of_claim(devices)
        yield from _misfits(devices, path, kinds, requested)
        mps = {index for index, config in valid.items() if config.is_mps}
        if mps:
            yield from _beside_mps(devices, path, kinds, requested, mps)
    for index, request in enumerate(devices.requests or ()):
        for below, asked in request.asked():
            where = f"{path}.requests[{index}]{below}"
            kind = requests.KIND_BY_CLASS.get(asked.device_class_name)
            if asked.admin_access:
                yield from _of_monitors(kind, where, gates)
            if kind == VfioDeviceConfig.kind or not review.is_absent(asked.capacity):
                yield from _of_gates(asked, kind, where, gates)
            if cluster.classes is not None:
                yield from _of_class(asked.device_class_name, where, cluster.classes)
            if cluster.profiles is not None and asked.selectors:
                yield from _of_profiles(asked.selectors, where, cluster.profiles, gates)


def _of_monitors(kind: str | None, where: str, gates: FeatureGates) -> Iterator[str]:
    """Yield what keeps pods with admin access from starting (kubernetes/kubernetes#140729)."""
    if kind in (GpuConfig.kind, MigDeviceConfig.kind) and gates.is_enabled(Feature.DYNAMIC_MIG):
        gate = Feature.DYNAMIC_MIG
    elif kind == GpuConfig.kind and gates.is_enabled(Feature.PASSTHROUGH):
        gate = Feature.PASSTHROUGH  # a GPU and its vfio device have counters in common
    else:
        return
    yield (
        f"{where}.adminAccess: pods with this claim stay Pending while another claim has the GPU "
        f"or a part of it, as the feature gate {gate} is on: Kubernetes counts what they consume, "
        "too"
    )


def _of_gates(asked: Exact, kind: str | None, where: str, gates: FeatureGates) -> Iterator[str]:
    """Yield what is asked for of the charts' classes, and is not there with these gates."""
    if kind == VfioDeviceConfig.kind and not gates.is_enabled(Feature.PASSTHROUGH):
        yield (
            f"{where}.deviceClassName: no node offers devices for passthrough, as the feature gate "
            f"{Feature.PASSTHROUGH} is off: pods with this claim stay Pending"
        )
    if kind == GpuConfig.kind and not gates.is_enabled(Feature.CONSUMABLE_SHARES):
        yield (
            f"{where}.capacity: the claim gets a whole GPU with at least this, as the feature gate "
            f"{Feature.CONSUMABLE_SHARES} is off"
        )


def _of_class(wanted: str, where: str, known: Set[str]) -> Iterator[str]:
    if wanted and wanted not in known:
        yield (
            f"{where}.deviceClassName: there is no DeviceClass {_shown(wanted)} (unless it "
            "was just made), so pods with this claim stay Pending; "
            f"{_similar(wanted, known)}"
        )


def _of_profiles(
    selectors: Sequence[Selector], where: str, known: Set[str], gates: FeatureGates
) -> Iterator[str]:
    """Yield the MIG profiles that an expression asks for and that no node offers."""
    offered = ", ".join(sorted(known)) or "none"
    for selector in selectors:
        expression = selector.cel.expression[:_MAX_EXPRESSION] if selector.cel else ""
        wanted = [[profile] for profile in _PROFILE.findall(expression)]
        wanted += [_TEXT.findall(each) for each in _ONE_OF_PROFILES.findall(expression)]
        for profiles in wanted:
            if known.isdisjoint(profiles):
                yield (
                    f"{where}.selectors: no node offers the MIG profile "
                    f"{' or '.join(map(_shown, profiles))}; profiles on offer: {offered}"
                    f"{_why(gates)}"
                )


def _similar(name: str, known: Set[str]) -> str:
    """Say which of the charts' classes may be meant. Of all classes that could take seconds."""
    close = difflib.get_close_matches(
        name[:_MAX_NAME], sorted(known & requests.KIND_BY_CLASS.keys()), n=1
    )
    return f'did you mean "{close[0]}"?' if close else "kubectl get deviceclasses lists them"


def _why(gates: FeatureGates) -> str:
    if gates.is_enabled(Feature.DYNAMIC_MIG):
        return ""
    return f" (none is made to order, as the feature gate {Feature.DYNAMIC_MIG} is off)"


def _unknown_requests(
    devices: Devices, path: str, own: Sequence[tuple[int, ConfigEntry]]
) -> Iterator[str]:
    known = [name for request in devices.requests or () for name in request.names()]
    for index, entry in own:
        for name in entry.requests or ():
            if name not in known:
                yield (
                    f"{path}.config[{index}].requests: there is no request {_shown(name)}, so the "
                    f"config does not apply to it; requests: {_listed(known)}"
                )


def _misfits(
    devices: Devices, path: str, kinds: Mapping[int, str], asked: Sequence[Asked]
) -> Iterator[str]:
    """Yield which configs do not fit the devices of their requests.

    What prepare would do with them: `nvdra_runtime.claims.opaque_configs`.
    """
    configs = devices.config or ()
    if all(each.kind == kind for each in asked for kind in kinds.values()):
        return  # the usual claim
    used, refused = set[int](), dict[int, Asked]()
    for each in asked:
        index = requests.deciding_config(each, configs, kinds)
        if index is not None and kinds[index] == each.kind:
            used.add(index)
        elif index is not None:
            refused.setdefault(index, each)
    for index, kind in kinds.items():
        concerned = [each for each in asked if configs[index].applies_to(each.name)]
        if index in refused:
            misfit = refused[index]
            who = "pods that get it" if "/" in misfit.name else "pods with this claim"
            effect = f"{who} will not start"
        elif concerned and index not in used and all(each.kind for each in concerned):
            if any(each.kind == kind for each in concerned):
                continue  # another config overrides it
            misfit, effect = concerned[0], "it has no effect"
        else:
            continue
        yield (
            f"{path}.config[{index}]: {kind} does not fit request {_shown(misfit.name)}, so "
            f"{effect}; {misfit.device_class} takes {misfit.kind}"
        )


def _beside_mps(
    devices: Devices,
    path: str,
    kinds: Mapping[int, str],
    asked: Sequence[Asked],
    mps: Set[int],
) -> Iterator[str]:
    """Yield two requests of which a container that uses both computes on one alone.

    A client of an MPS control daemon has the devices of this daemon. GPUs have one for each config,
    a MIG device has its own: `nvdra_gpu_plugin.mps.daemon_plan`.
    """
    daemons: dict[str, set[int | str | None]] = {}
    for each in asked:
        if each.is_monitor or each.kind not in (GpuConfig.kind, MigDeviceConfig.kind):
            continue
        index = requests.deciding_config(each, devices.config or (), kinds)
        daemon: int | str | None = None
        if index in mps:
            daemon = index if each.kind == GpuConfig.kind else each.name
        daemons.setdefault(each.name.partition("/")[0], set()).add(daemon)
    for shared, other in itertools.permutations(daemons, 2):
        if daemons[shared] != {None} and len(daemons[shared] | daemons[other]) > 1:
            yield (
                f"{path}.requests: CUDA in a container that uses both {_shown(shared)}, which MPS "
                f"shares, and {_shown(other)} sees the devices of one at most; let each container "
                "name one of them (resources.claims[].request)"
            )
            return


def _overridden(path: str, own: Sequence[tuple[int, ConfigEntry]]) -> Iterator[str]:
    """Yield which config has no effect on a request that it names, as a later one has it too."""
    last: dict[tuple[str, str], int] = {}
    for index, entry in own:
        driver = entry.opaque.driver if entry.opaque else ""
        for name in entry.requests or ():
            key = (driver, name)
            if key in last:
                yield (
                    f"{path}.config[{last[key]}]: config[{index}] overrides it for request "
                    f"{_shown(name)}"
                )
            last[key] = index


def _listed(requests: Sequence[str]) -> str:
    return ", ".join(texts.shortened(name, _MAX_SHOWN) for name in requests) or "none"


def _shown(text: str) -> str:
    return f'"{texts.shortened(text, _MAX_SHOWN)}"'
