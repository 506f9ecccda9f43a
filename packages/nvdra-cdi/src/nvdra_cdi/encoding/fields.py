# SPDX-License-Identifier: Apache-2.0
"""The fields of a CDI document: their JSON names, order and types (docs/reference/cdi.md §1).

The table serves reading and writing. Fields are written in the order of the table.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nvdra_cdi.model import (
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
)


class String:
    """A string."""


@dataclass(frozen=True)
class Integer:
    """An integer from `lowest` to `highest`."""

    lowest: int
    highest: int


class Boolean:
    """True or false."""


class StringMap:
    """A mapping of strings to strings."""


@dataclass(frozen=True)
class ListOf:
    """A list of values of one type."""

    item_type: "FieldType"


@dataclass(frozen=True)
class Object:
    """A nested object, of a class of `model`."""

    model: type


FieldType = String | Integer | Boolean | StringMap | ListOf | Object


@dataclass(frozen=True)
class Field:
    """One field of one object.

    Attributes:
        key: Its name in the document.
        attribute: Its name in the model.
        type: Its type.
        keeps_zero: Whether zero and empty objects are written, because they differ from absence.
        last_version: The last CDI version with this field. Empty if the current version has it.
    """

    key: str
    attribute: str
    type: FieldType
    keeps_zero: bool = False
    last_version: str = ""

    def is_written(self, value: Any) -> bool:
        """Whether a document contains the field if it has this value."""
        return value is not None and (bool(value) or self.keeps_zero)


STRING = String()
_BOOLEAN = Boolean()
_STRINGS = ListOf(STRING)
INT64 = Integer(-(1 << 63), (1 << 63) - 1)
UINT32 = Integer(0, (1 << 32) - 1)
_SURROGATE = re.compile("[\ud800-\udfff]")

FIELDS: Mapping[type, tuple[Field, ...]] = {
    Spec: (
        Field("cdiVersion", "version", STRING),
        Field("kind", "kind", STRING),
        Field("annotations", "annotations", StringMap()),
        Field("devices", "devices", ListOf(Object(Device))),
        Field("containerEdits", "container_edits", Object(ContainerEdits)),
    ),
    Device: (
        Field("name", "name", STRING),
        Field("annotations", "annotations", StringMap()),
        Field("containerEdits", "container_edits", Object(ContainerEdits)),
    ),
    ContainerEdits: (
        Field("env", "env", _STRINGS),
        Field("deviceNodes", "device_nodes", ListOf(Object(DeviceNode))),
        Field("netDevices", "net_devices", ListOf(Object(NetDevice))),
        Field("hooks", "hooks", ListOf(Object(Hook))),
        Field("mounts", "mounts", ListOf(Object(Mount))),
        Field("intelRdt", "intel_rdt", Object(IntelRdt), keeps_zero=True),
        Field("additionalGids", "additional_gids", ListOf(UINT32)),
    ),
    DeviceNode: (
        Field("path", "path", STRING),
        Field("hostPath", "host_path", STRING),
        Field("type", "type", STRING),
        Field("major", "major", INT64),
        Field("minor", "minor", INT64),
        Field("fileMode", "file_mode", UINT32, keeps_zero=True),
        Field("permissions", "permissions", STRING),
        Field("uid", "uid", UINT32, keeps_zero=True),
        Field("gid", "gid", UINT32, keeps_zero=True),
    ),
    NetDevice: (
        Field("hostInterfaceName", "host_interface_name", STRING),
        Field("name", "name", STRING),
    ),
    Hook: (
        Field("hookName", "hook_name", STRING),
        Field("path", "path", STRING),
        Field("args", "args", _STRINGS),
        Field("env", "env", _STRINGS),
        Field("timeout", "timeout", INT64, keeps_zero=True),
    ),
    Mount: (
        Field("hostPath", "host_path", STRING),
        Field("containerPath", "container_path", STRING),
        Field("options", "options", _STRINGS),
        Field("type", "type", STRING),
    ),
    IntelRdt: (
        Field("closID", "clos_id", STRING),
        Field("l3CacheSchema", "l3_cache_schema", STRING),
        Field("memBwSchema", "mem_bw_schema", STRING),
        Field("schemata", "schemata", _STRINGS),
        Field("enableMonitoring", "enable_monitoring", _BOOLEAN),
        Field("enableCMT", "enable_cmt", _BOOLEAN, last_version="1.0.0"),
        Field("enableMBM", "enable_mbm", _BOOLEAN, last_version="1.0.0"),
    ),
}


def is_unicode(text: str) -> bool:
    """Whether a document can contain the text. Lone surrogates cannot be encoded."""
    return text.isascii() or _SURROGATE.search(text) is None
