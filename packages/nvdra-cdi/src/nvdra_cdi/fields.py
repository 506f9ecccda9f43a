"""The fields of a CDI document: their names on the wire, order and types (spec/cdi.md §1).

One table for both directions. Order here is the order in which fields are written.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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


class Text:
    """A string."""


@dataclass(frozen=True)
class Number:
    """A whole number in a closed range."""

    lowest: int
    highest: int


class Flag:
    """True or false."""


class TextMap:
    """String to string."""


@dataclass(frozen=True)
class Items:
    """A sequence."""

    of: "Kind"


@dataclass(frozen=True)
class Object:
    """A nested object of the model."""

    model: type


Kind = Text | Number | Flag | TextMap | Items | Object


@dataclass(frozen=True)
class Field:
    """One field of one object.

    Attributes:
        key: Its name in the document.
        attribute: Its name in the model.
        kind: Its type.
        keeps_zero: A present zero or empty object is written, because it differs from absence.
        until: The last version of the standard that has it; empty: the current one has.
    """

    key: str
    attribute: str
    kind: Kind
    keeps_zero: bool = False
    until: str = ""


_TEXT = Text()
_FLAG = Flag()
_TEXTS = Items(_TEXT)
_INT64 = Number(-(1 << 63), (1 << 63) - 1)
_UINT32 = Number(0, (1 << 32) - 1)

FIELDS: Mapping[type, tuple[Field, ...]] = {
    Spec: (
        Field("cdiVersion", "version", _TEXT),
        Field("kind", "kind", _TEXT),
        Field("annotations", "annotations", TextMap()),
        Field("devices", "devices", Items(Object(Device))),
        Field("containerEdits", "container_edits", Object(ContainerEdits)),
    ),
    Device: (
        Field("name", "name", _TEXT),
        Field("annotations", "annotations", TextMap()),
        Field("containerEdits", "container_edits", Object(ContainerEdits)),
    ),
    ContainerEdits: (
        Field("env", "env", _TEXTS),
        Field("deviceNodes", "device_nodes", Items(Object(DeviceNode))),
        Field("netDevices", "net_devices", Items(Object(NetDevice))),
        Field("hooks", "hooks", Items(Object(Hook))),
        Field("mounts", "mounts", Items(Object(Mount))),
        Field("intelRdt", "intel_rdt", Object(IntelRdt), keeps_zero=True),
        Field("additionalGids", "additional_gids", Items(_UINT32)),
    ),
    DeviceNode: (
        Field("path", "path", _TEXT),
        Field("hostPath", "host_path", _TEXT),
        Field("type", "type", _TEXT),
        Field("major", "major", _INT64),
        Field("minor", "minor", _INT64),
        Field("fileMode", "file_mode", _UINT32, keeps_zero=True),
        Field("permissions", "permissions", _TEXT),
        Field("uid", "uid", _UINT32, keeps_zero=True),
        Field("gid", "gid", _UINT32, keeps_zero=True),
    ),
    NetDevice: (
        Field("hostInterfaceName", "host_interface_name", _TEXT),
        Field("name", "name", _TEXT),
    ),
    Hook: (
        Field("hookName", "hook_name", _TEXT),
        Field("path", "path", _TEXT),
        Field("args", "args", _TEXTS),
        Field("env", "env", _TEXTS),
        Field("timeout", "timeout", _INT64, keeps_zero=True),
    ),
    Mount: (
        Field("hostPath", "host_path", _TEXT),
        Field("containerPath", "container_path", _TEXT),
        Field("options", "options", _TEXTS),
        Field("type", "type", _TEXT),
    ),
    IntelRdt: (
        Field("closID", "clos_id", _TEXT),
        Field("l3CacheSchema", "l3_cache_schema", _TEXT),
        Field("memBwSchema", "mem_bw_schema", _TEXT),
        Field("schemata", "schemata", _TEXTS),
        Field("enableMonitoring", "enable_monitoring", _FLAG),
        Field("enableCMT", "enable_cmt", _FLAG, until="1.0.0"),
        Field("enableMBM", "enable_mbm", _FLAG, until="1.0.0"),
    ),
}
