"""Warnings for settings that are allowed and may surprise. kubectl shows them to the user.

Source: docs/reference/webhook.md, "Intended differences".
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from nvdra_api import names
from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import is_uid
from nvdra_api.v1beta1 import (
    CONFIGS_BY_DRIVER,
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    DeviceConfig,
    GpuConfig,
    MigDeviceConfig,
    VfioDeviceConfig,
    sharing,
)

from nvdra_webhook.admission.claim import ConfigEntry, Devices
from nvdra_webhook.admission.cluster_names import ClusterNames

MAX_WARNINGS: Final = 16
"""The API server cuts all warnings of an answer at 4096 characters."""
_MAX_SHOWN: Final = 60
"""Characters of a user's text in a warning; the API server cuts each at 256."""

_KIND_BY_CLASS: Final = {
    "gpu.nvidia.com": GpuConfig.kind,
    "mig.nvidia.com": MigDeviceConfig.kind,
    "vfio.gpu.nvidia.com": VfioDeviceConfig.kind,
    names.CHANNEL_CLASS: ComputeDomainChannelConfig.kind,
    "computedomain.nvidia.com": ComputeDomainChannelConfig.kind,
    names.DAEMON_CLASS: ComputeDomainDaemonConfig.kind,
}
"""The kind of config for the devices of each class of the charts. Of another class only its
expressions know which devices it has."""

_PROFILE: Final = re.compile(
    r"""device\.attributes\[\s*["']gpu\.nvidia\.com["']\s*\]\.profile\s*==\s*["']([^"']+)["']"""
)


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
    kinds: Mapping[int, str],
    cluster: ClusterNames,
    gates: FeatureGates,
) -> Iterator[str]:
    """Yield what requests and configs say that does not fit together, or not the cluster.

    Args:
        devices: What the claim asks for.
        path: Its field in the object.
        kinds: The kinds of the configs that are valid, by their index.
        cluster: What is known of the cluster.
        gates: The feature gates of the plugins.
    """
    own = [
        (index, entry)
        for index, entry in enumerate(devices.config or ())
        if entry.opaque is not None
        and entry.opaque.driver in (names.GPU_DRIVER, names.COMPUTE_DOMAIN_DRIVER)
    ]
    if any(entry.requests for _, entry in own):
        yield from _unknown_requests(devices, path, own)
        yield from _overridden(path, own)
    yield from _misfits(devices, path, kinds)
    if cluster.classes is None and cluster.profiles is None:
        return
    for index, request in enumerate(devices.requests or ()):
        for below, asked in request.asked():
            where = f"{path}.requests[{index}]{below}"
            wanted = asked.device_class_name
            if cluster.classes is not None and wanted and wanted not in cluster.classes:
                yield (
                    f"{where}.deviceClassName: there is no DeviceClass {_shown(wanted)}, so pods "
                    f"with this claim stay Pending; {_similar(wanted, cluster.classes)}"
                )
            if cluster.profiles is not None:
                for selector in asked.selectors or ():
                    expression = selector.cel.expression if selector.cel else ""
                    for profile in _PROFILE.findall(expression):
                        if profile not in cluster.profiles:
                            known = ", ".join(sorted(cluster.profiles)) or "none"
                            yield (
                                f"{where}.selectors: no node offers the MIG profile "
                                f"{_shown(profile)}; profiles on offer: {known}{_why(gates)}"
                            )


def _similar(name: str, known: Set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
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
                    f"config does not apply to it; requests: {', '.join(known) or 'none'}"
                )


def _misfits(devices: Devices, path: str, kinds: Mapping[int, str]) -> Iterator[str]:
    """Yield which configs are of another kind than the devices of their requests.

    Prepare refuses a config that names such a request, and ignores one that names none
    (`nvdra_runtime.claims.opaque_configs`).
    """
    wanted = [each for request in devices.requests or () for each in request.classes()]
    for index, kind in kinds.items():
        named = (devices.config or ())[index].requests
        concerned = [
            (name, _KIND_BY_CLASS.get(device_class), device_class)
            for name, device_class in wanted
            if not named or name in named or name.partition("/")[0] in named
        ]
        misfits = [each for each in concerned if each[1] not in (None, kind)]
        if not misfits or (not named and len(misfits) < len(concerned)):
            continue
        name, right, device_class = misfits[0]
        is_refused = named and _driver(right) == _driver(kind)
        yield (
            f"{path}.config[{index}]: {kind} does not fit request {_shown(name)}, so "
            f"{'pods with this claim will not start' if is_refused else 'it has no effect'}; "
            f"{device_class} takes {right}"
        )


def _driver(kind: str | None) -> str:
    return next(
        driver for driver, kinds in CONFIGS_BY_DRIVER.items() if kind in {k.kind for k in kinds}
    )


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


def _shown(text: str) -> str:
    cut = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return f'"{cut}"'
