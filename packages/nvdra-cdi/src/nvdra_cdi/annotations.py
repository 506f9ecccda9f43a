# SPDX-License-Identifier: Apache-2.0
"""Container annotations that request devices, `cdi.k8s.io/…` (docs/reference/cdi.md §9).

They are for runtimes that do not receive CDI names from the kubelet.
"""

import re
from collections.abc import Iterable, Mapping

from nvdra_cdi import names
from nvdra_cdi.errors import AnnotationError, InvalidNameError

PREFIX = "cdi.k8s.io/"

_MAX_NAME_CHARACTERS = 63  # characters of a Kubernetes annotation's name
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)


def key(plugin: str, device_id: str) -> str:
    """The annotation key for a plugin's request, `cdi.k8s.io/<plugin>_<device id>`.

    Args:
        plugin: The plugin, by convention `vendor.device-type`.
        device_id: An id that makes the key unique. A slash is replaced with `_`.

    Raises:
        AnnotationError: An argument is empty, or the key is malformed.
    """
    if not plugin or not device_id:
        raise AnnotationError(
            "an annotation key needs a plugin and a device id, but one of them is empty"
        )
    name = f"{plugin}_{device_id.replace('/', '_')}"
    if len(name) > _MAX_NAME_CHARACTERS:
        raise AnnotationError(
            f'"{name}" is longer than {_MAX_NAME_CHARACTERS} characters: shorten the device id'
        )
    if not _NAME.fullmatch(name):
        raise AnnotationError(
            f'"{name}" must start and end with a letter or digit, and contain only those and "-_."'
        )
    return PREFIX + name


def value(devices: Iterable[str]) -> str:
    """The annotation value that requests these devices.

    Args:
        devices: Qualified names, at least one: an empty value cannot be parsed.

    Raises:
        AnnotationError: There are no names, or one is not a qualified name.
    """
    asked = list(devices)
    if not asked:
        raise AnnotationError("an annotation must request at least one device")
    for device in asked:
        _require_qualified(device, "")
    return ",".join(asked)


def update(
    annotations: Mapping[str, str], plugin: str, device_id: str, devices: Iterable[str]
) -> dict[str, str]:
    """The annotations with an additional one that requests these devices.

    Raises:
        AnnotationError: The key exists, or the key or value is malformed.
    """
    new = key(plugin, device_id)
    if new in annotations:
        raise AnnotationError(f"{new} already exists: use another device id")
    return {**annotations, new: value(devices)}


def parse(annotations: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The devices that a container's annotations request, by key, sorted by key.

    Raises:
        AnnotationError: An annotation contains something that is not a qualified name.
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
    except InvalidNameError as error:
        raise AnnotationError(f"{where}{error}") from error
