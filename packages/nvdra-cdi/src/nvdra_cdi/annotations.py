"""Container annotations that ask for devices, `cdi.k8s.io/…` (spec/cdi.md §9).

For runtimes that do not take CDI names from the kubelet. Nothing here changes what it is given.
"""

import re
from collections.abc import Iterable, Mapping

from nvdra_cdi import names
from nvdra_cdi.errors import AnnotationError, NameError_

PREFIX = "cdi.k8s.io/"

_LONGEST = 63  # characters of a Kubernetes annotation's name
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)


def key(plugin: str, device_id: str) -> str:
    """The key under which a plugin asks for devices, `cdi.k8s.io/<plugin>_<device id>`.

    Args:
        plugin: `vendor.device-type`, by convention.
        device_id: Makes the key unique among the plugin's; a slash becomes `_`.

    Raises:
        AnnotationError: One of them is empty, or together they make no key.
    """
    if not plugin or not device_id:
        raise AnnotationError("an annotation's key needs a plugin and a device id, one is empty")
    name = f"{plugin}_{device_id.replace('/', '_')}"
    if len(name) > _LONGEST:
        raise AnnotationError(f'"{name}" is over {_LONGEST} characters: shorten the device id')
    if not _NAME.fullmatch(name):
        raise AnnotationError(
            f'"{name}" must start and end with a letter or digit, and hold only those and "-_."'
        )
    return PREFIX + name


def value(devices: Iterable[str]) -> str:
    """The value that asks for these devices.

    Args:
        devices: Qualified names; at least one, since nobody parses an empty value.

    Raises:
        AnnotationError: There is none, or one is no qualified name.
    """
    asked = list(devices)
    if not asked:
        raise AnnotationError("an annotation must ask for at least one device")
    for device in asked:
        _require_qualified(device, "")
    return ",".join(asked)


def update(
    annotations: Mapping[str, str], plugin: str, device_id: str, devices: Iterable[str]
) -> dict[str, str]:
    """The annotations with one more that asks for these devices.

    Raises:
        AnnotationError: The key is taken, or key or value break their rule.
    """
    new = key(plugin, device_id)
    if new in annotations:
        raise AnnotationError(f"{new} is there already: use another device id")
    return {**annotations, new: value(devices)}


def parse(annotations: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The devices that a container's annotations ask for, by key, in the order of the keys.

    Raises:
        AnnotationError: An item of a value is no qualified name; nothing else is then believed.
    """
    asked: dict[str, tuple[str, ...]] = {}
    for found in sorted(annotations):
        if found.startswith(PREFIX):
            asked[found] = tuple(annotations[found].split(","))
            for device in asked[found]:
                _require_qualified(device, f"{found}: ")
    return asked


def _require_qualified(device: str, where: str) -> None:
    try:
        names.parse_qualified_name(device)
    except NameError_ as error:
        raise AnnotationError(f"{where}{error}") from error
