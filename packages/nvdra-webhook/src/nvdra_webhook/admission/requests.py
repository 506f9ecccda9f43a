# SPDX-License-Identifier: Apache-2.0
"""Which config each request of a claim gets, as far as the names of classes tell.

What prepare does: `nvdra_runtime.claims.opaque_configs`.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from nvdra_api import names
from nvdra_api.v1beta1 import (
    CONFIGS_BY_DRIVER,
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    GpuConfig,
    MigDeviceConfig,
    VfioDeviceConfig,
)

from nvdra_webhook.admission.claim import ConfigEntry, Devices

KIND_BY_CLASS: Final = {
    "gpu.nvidia.com": GpuConfig.kind,
    "mig.nvidia.com": MigDeviceConfig.kind,
    "vfio.gpu.nvidia.com": VfioDeviceConfig.kind,
    names.CHANNEL_CLASS: ComputeDomainChannelConfig.kind,
    "computedomain.nvidia.com": ComputeDomainChannelConfig.kind,
    names.DAEMON_CLASS: ComputeDomainDaemonConfig.kind,
}
"""The kind of config for the devices of each class of the charts. Of another class only its
expressions know which devices it has."""

_DRIVER_BY_KIND: Final = {
    config.kind: driver for driver, configs in CONFIGS_BY_DRIVER.items() for config in configs
}


class ValidConfig(NamedTuple):
    """A config that prepare accepts.

    Attributes:
        kind: Its kind.
        is_mps: Whether its devices are shared by MPS.
        is_shared: Whether it says how its devices are shared.
        backend_policy: Of a VfioDeviceConfig; empty for other kinds.
        has_api_device: Whether it is a VfioDeviceConfig whose containers get the control node.
    """

    kind: str
    is_mps: bool = False
    is_shared: bool = False
    backend_policy: str = ""
    has_api_device: bool = False


class Asked(NamedTuple):
    """What a request, or an alternative of one, asks for.

    Attributes:
        name: The name by which configs refer to it.
        device_class: Its class.
        kind: The kind of config for devices of this class; empty if that is not known.
        is_monitor: Whether it has admin access.
    """

    name: str
    device_class: str
    kind: str
    is_monitor: bool


def of_claim(devices: Devices) -> Sequence[Asked]:
    """What the requests of a claim, and the alternatives of each, ask for."""
    return [
        Asked(
            name,
            exact.device_class_name,
            KIND_BY_CLASS.get(exact.device_class_name, ""),
            bool(exact.admin_access),
        )
        for request in devices.requests or ()
        for name, exact in request.named()
    ]


def deciding_config(
    asked: Asked, configs: Sequence[ConfigEntry], kinds: Mapping[int, str]
) -> int | None:
    """The config that a device gets, or that is refused because it names its request.

    None without one, and if it is not among the valid ones or the kind of the device is not known.
    """
    if not asked.kind:
        return None
    driver = _DRIVER_BY_KIND[asked.kind]
    for index in reversed(range(len(configs))):
        entry = configs[index]
        if not (entry.is_for(driver) and entry.applies_to(asked.name)):
            continue
        if index not in kinds:
            return None
        if entry.requests or kinds[index] == asked.kind:
            return index
    return None
