# SPDX-License-Identifier: Apache-2.0
"""What claims of vfio devices say that prepare refuses, or that surprises KubeVirt's users.

It holds if the feature gate `PassthroughSupport` is on.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from nvdra_api.v1beta1 import VfioDeviceConfig

from nvdra_webhook.admission import requests
from nvdra_webhook.admission.claim import Devices, Exact
from nvdra_webhook.admission.requests import ValidConfig

_KUBEVIRT: Final = "kubevirt"
"""What the names of namespaces and classes for its virtual machines contain."""
_CAPACITY: Final = "addressableMemory"
_ALL: Final = "All"
_POLICY: Final = ".opaque.parameters.iommu.backendPolicy"
_PARAMETERS: Final = ".opaque.parameters"


class Refusal(NamedTuple):
    """What prepare refuses for certain.

    Attributes:
        config: The index of the config that has the fault.
        field: Its field, below the config.
        text: What is wrong and what to do.
    """

    config: int
    field: str
    text: str


def refusals(devices: Devices, valid: Mapping[int, ValidConfig]) -> Iterator[Refusal]:
    """Yield what of valid configs no vfio device can be prepared with.

    Args:
        devices: What the claim asks for.
        valid: The configs that are valid by themselves, by their index.
    """
    if valid:
        yield from _shared(devices, valid)
        yield from _different_backends(devices, valid)


def warnings(
    devices: Devices, path: str, valid: Mapping[int, ValidConfig], namespace: str
) -> Iterator[str]:
    """Yield what a virtual machine with this claim will not start with.

    Args:
        devices: What the claim asks for.
        path: Its field in the object.
        valid: The configs that are valid by themselves, by their index.
        namespace: The object's.
    """
    for index, request in enumerate(devices.requests or ()):
        for below, exact in request.asked():
            if requests.KIND_BY_CLASS.get(exact.device_class_name) == VfioDeviceConfig.kind:
                yield from _of_request(exact, f"{path}.requests[{index}]{below}")
    for index, config in valid.items():
        if config.kind == VfioDeviceConfig.kind and not config.has_api_device:
            yield from _without_control_node(devices, path, index, namespace)


def _of_request(exact: Exact, where: str) -> Iterator[str]:
    if (exact.count or 1) > 1 or exact.allocation_mode == _ALL:
        field = "allocationMode" if exact.allocation_mode == _ALL else "count"
        yield (
            f"{where}.{field}: KubeVirt takes one device from each request, so a virtual machine "
            "with this claim does not start there; write a request for each GPU"
        )
    unknown = exact.capacities() - {_CAPACITY}
    if unknown:
        yield (
            f"{where}.capacity: vfio devices have {_CAPACITY} alone and are not shared, so that "
            "pods with this claim stay Pending"
        )


def _without_control_node(devices: Devices, path: str, index: int, namespace: str) -> Iterator[str]:
    entry = (devices.config or ())[index]
    classes = (
        exact.device_class_name
        for request in devices.requests or ()
        for name, exact in request.named()
        if entry.applies_to(name)
    )
    if any(_KUBEVIRT in name for name in (namespace, *classes)):
        yield (
            f"{path}.config[{index}].opaque.parameters.iommu.enableAPIDevice: KubeVirt's "
            "containers need the control node /dev/vfio/vfio or /dev/iommu; set it to true"
        )


def _shared(devices: Devices, valid: Mapping[int, ValidConfig]) -> Iterator[Refusal]:
    """Yield configs that share the GPU of a request which can be a vfio device only."""
    kinds = {index: config.kind for index, config in valid.items()}
    seen: set[int] = set()
    for asked in requests.of_claim(devices):
        if asked.kind != VfioDeviceConfig.kind or "/" in asked.name:
            continue
        index = requests.deciding_config(asked, devices.config or (), kinds)
        if index is not None and valid[index].is_shared and index not in seen:
            seen.add(index)
            yield Refusal(
                index,
                _PARAMETERS,
                f"{kinds[index]} shares devices, and a virtual machine has its GPU alone; use "
                f"{VfioDeviceConfig.kind} for devices of {asked.device_class}",
            )


def _different_backends(devices: Devices, valid: Mapping[int, ValidConfig]) -> Iterator[Refusal]:
    """Yield the config of a request that gets another back end than an earlier one, in any case.

    A request whose alternatives differ may get either, and one without a config that of its class.
    """
    kinds = {index: config.kind for index, config in valid.items()}
    by_request: dict[str, set[int | None]] = {}
    for asked in requests.of_claim(devices):
        index = requests.deciding_config(asked, devices.config or (), kinds)
        is_vfio = index is not None and asked.kind == kinds[index] == VfioDeviceConfig.kind
        found = by_request.setdefault(asked.name.partition("/")[0], set())
        found.add(index if is_vfio else None)
    certain: dict[str, int] = {}
    for indexes in by_request.values():
        policies = {valid[index].backend_policy if index is not None else "" for index in indexes}
        if len(policies) == 1 and "" not in policies:
            (policy,) = policies
            certain.setdefault(policy, min(index for index in indexes if index is not None))
    if len(certain) > 1:
        (first, _), (second, index) = sorted(certain.items(), key=lambda pair: pair[1])
        yield Refusal(
            index,
            _POLICY,
            f"{second} and {first} are in one claim, and a virtual machine opens all its devices "
            "by one back end; use the same backendPolicy, or two claims",
        )
