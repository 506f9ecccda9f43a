# SPDX-License-Identifier: Apache-2.0
"""What the corpus must cover: every field of docs/reference/cdi.md §1 and every rule of its §4.

The one list: generators are looked up by these names, the report counts by them.
"""

from dataclasses import dataclass
from typing import Literal

Type = Literal[
    "text", "texts", "int64", "uint32", "uint32s", "flag", "text map", "object", "objects"
]

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Those a valid document can have, §2."""


@dataclass(frozen=True)
class Field:
    """One field.

    Attributes:
        section: Of docs/reference/cdi.md.
        owner: The object it belongs to.
        key: Its name in a document.
        type: What its value is.
        since: The first version that has it.
        until: The last version that has it.
        is_required: Without it, or with an empty value, a document is broken.
    """

    section: str
    owner: str
    key: str
    type: Type
    since: str = "0.3.0"
    until: str = "1.1.0"
    is_required: bool = False

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.key}"

    @property
    def versions(self) -> tuple[str, ...]:
        """Those that a document with this field can have."""
        return tuple(v for v in VERSIONS if _rank(self.since) <= _rank(v) <= _rank(self.until))


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        section: Of docs/reference/cdi.md.
        name: The generator's.
        says: The rule, in short.
        is_extra: One of ours beyond the standard: such a document is read, and not written.
    """

    section: str
    name: str
    says: str
    is_extra: bool = False


def _rank(version: str) -> int:
    return VERSIONS.index(version)


FIELDS = (
    Field("1.1", "Spec", "cdiVersion", "text", is_required=True),
    Field("1.1", "Spec", "kind", "text", is_required=True),
    Field("1.1", "Spec", "annotations", "text map", since="0.6.0"),
    Field("1.1", "Spec", "devices", "objects", is_required=True),
    Field("1.1", "Spec", "containerEdits", "object"),
    Field("1.2", "Device", "name", "text", is_required=True),
    Field("1.2", "Device", "annotations", "text map", since="0.6.0"),
    Field("1.2", "Device", "containerEdits", "object", is_required=True),
    Field("1.3", "ContainerEdits", "env", "texts"),
    Field("1.3", "ContainerEdits", "deviceNodes", "objects"),
    Field("1.3", "ContainerEdits", "netDevices", "objects", since="1.1.0"),
    Field("1.3", "ContainerEdits", "hooks", "objects"),
    Field("1.3", "ContainerEdits", "mounts", "objects"),
    Field("1.3", "ContainerEdits", "intelRdt", "object", since="0.7.0"),
    Field("1.3", "ContainerEdits", "additionalGids", "uint32s", since="0.7.0"),
    Field("1.4", "DeviceNode", "path", "text", is_required=True),
    Field("1.4", "DeviceNode", "hostPath", "text", since="0.5.0"),
    Field("1.4", "DeviceNode", "type", "text"),
    Field("1.4", "DeviceNode", "major", "int64"),
    Field("1.4", "DeviceNode", "minor", "int64"),
    Field("1.4", "DeviceNode", "fileMode", "uint32"),
    Field("1.4", "DeviceNode", "permissions", "text"),
    Field("1.4", "DeviceNode", "uid", "uint32"),
    Field("1.4", "DeviceNode", "gid", "uint32"),
    Field("1.5", "Mount", "hostPath", "text", is_required=True),
    Field("1.5", "Mount", "containerPath", "text", is_required=True),
    Field("1.5", "Mount", "options", "texts"),
    Field("1.5", "Mount", "type", "text", since="0.4.0"),
    Field("1.6", "Hook", "hookName", "text", is_required=True),
    Field("1.6", "Hook", "path", "text", is_required=True),
    Field("1.6", "Hook", "args", "texts"),
    Field("1.6", "Hook", "env", "texts"),
    Field("1.6", "Hook", "timeout", "int64"),
    Field("1.7", "NetDevice", "hostInterfaceName", "text", since="1.1.0", is_required=True),
    Field("1.7", "NetDevice", "name", "text", since="1.1.0", is_required=True),
    Field("1.8", "IntelRdt", "closID", "text", since="0.7.0"),
    Field("1.8", "IntelRdt", "l3CacheSchema", "text", since="0.7.0"),
    Field("1.8", "IntelRdt", "memBwSchema", "text", since="0.7.0"),
    Field("1.8", "IntelRdt", "schemata", "texts", since="1.1.0"),
    Field("1.8", "IntelRdt", "enableMonitoring", "flag", since="1.1.0"),
    Field("1.8", "IntelRdt", "enableCMT", "flag", since="0.7.0", until="1.0.0"),
    Field("1.8", "IntelRdt", "enableMBM", "flag", since="0.7.0", until="1.0.0"),
)

RULES = (
    Rule(
        "4 (1), 2", "version known", "cdiVersion is one of the known ones; one leading v is ignored"
    ),
    Rule("4 (1), 2", "at least 0.3.0", "no document may have 0.1.0 or 0.2.0"),
    Rule("4 (1), 2", "version for schemata", "a schemata, even an empty one, needs 1.1.0"),
    Rule("4 (1), 2", "version for enableMonitoring", "enableMonitoring, when true, needs 1.1.0"),
    Rule("4 (1), 2", "version for netDevices", "netDevices need 1.1.0"),
    Rule("4 (1), 2", "version for intelRdt", "intelRdt, even an empty one, needs 0.7.0"),
    Rule("4 (1), 2", "version for additionalGids", "additionalGids need 0.7.0"),
    Rule("4 (1), 2", "version for spec annotations", "annotations of the spec need 0.6.0"),
    Rule("4 (1), 2", "version for device annotations", "annotations of a device need 0.6.0"),
    Rule(
        "4 (1), 2",
        "version for a dotted class",
        "a dot in the class, not in the vendor, needs 0.6.0",
    ),
    Rule(
        "4 (1), 2", "version for a leading digit", "a device name with a leading digit needs 0.5.0"
    ),
    Rule("4 (1), 2", "version for hostPath", "a device node's hostPath needs 0.5.0"),
    Rule("4 (1), 2", "version for mount type", "a mount's type needs 0.4.0"),
    Rule(
        "4 (2), 3",
        "vendor",
        "the part of kind before the slash is there and keeps the rule for names",
    ),
    Rule(
        "4 (2), 3",
        "class",
        "the part of kind behind the slash is there and keeps the rule for names",
    ),
    Rule("4 (5), 3", "device name", "is there and keeps the rule for device names"),
    Rule("4 (5)", "device name unique", "no two devices of a spec have one name"),
    Rule("4 (6)", "a device", "a spec has at least one device"),
    Rule("4", "null field", "a field that is null counts as absent"),
    Rule("4", "null entry", "a list has no null entry"),
    Rule("4", "env", "entries have an = that is not their first byte"),
    Rule("4", "device node path", "is not empty"),
    Rule("4", "device node type", "is empty, b, c, u or p"),
    Rule("4", "device node permissions", "is empty, none, or letters of rwm"),
    Rule("4", "hook name", "is one of the six"),
    Rule("4", "hook path", "is not empty"),
    Rule("4", "hook env", "entries have an = that is not their first byte"),
    Rule("4", "mount hostPath", "is not empty"),
    Rule("4", "mount containerPath", "is not empty"),
    Rule("4", "closID length", "is below 4096 bytes"),
    Rule("4", "closID name", "is /, or a file name"),
    Rule("4", "net device names", "neither name of a net device is empty"),
    Rule("4", "net device hosts unique", "no two net devices share a hostInterfaceName"),
    Rule("4", "net device names unique", "no two net devices share a name"),
    Rule("4", "additionalGids", "have no rule, zero is fine"),
    Rule("4", "device edits", "a device has at least one edit of any kind"),
    Rule("4", "spec edits", "may be empty"),
    Rule(
        "4 (3)",
        "spec annotations",
        "have Kubernetes' keys, any case, at most 256 KiB",
        is_extra=True,
    ),
    Rule(
        "4 (5)",
        "device annotations",
        "have Kubernetes' keys, any case, at most 256 KiB",
        is_extra=True,
    ),
    Rule("3", "vendor length", "at most 253 characters", is_extra=True),
    Rule("3", "class length", "at most 63 characters", is_extra=True),
    Rule("3", "one-character vendor", "older libraries crash at one", is_extra=True),
    Rule("3", "one-character class", "older libraries crash at one", is_extra=True),
    Rule("4", "absolute hook path", "a hook's path is absolute", is_extra=True),
    Rule("4", "absolute mount path", "a mount's paths are absolute", is_extra=True),
    Rule("4", "absolute node path", "a device node's paths are absolute", is_extra=True),
    Rule("4", "positive timeout", "a hook's timeout is above 0", is_extra=True),
    Rule("4", "no control characters", "no string has a NUL or a newline", is_extra=True),
    Rule("4", "fileMode range", "is within 0…0o7777", is_extra=True),
    Rule("4", "major range", "is within 0…4095", is_extra=True),
    Rule("4", "minor range", "is within 0…1048575", is_extra=True),
    Rule(
        "4",
        "one node per path",
        "no two device nodes at one path in spec and device edits",
        is_extra=True,
    ),
    Rule(
        "4",
        "one mount per path",
        "no two mounts at one path in spec and device edits",
        is_extra=True,
    ),
    Rule("4", "FIFO without major", "a node of type p has no major number", is_extra=True),
)
