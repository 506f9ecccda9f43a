# SPDX-License-Identifier: Apache-2.0
"""The JSON schema of CDI documents, draft 2020-12, generated from the tables that the code uses.

The schema is meant for editors. It cannot express all rules of `validation`: for example, that
names are unique, or how long a class of `intelRdt` may be (docs/reference/cdi.md §11).
"""

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from nvdra_cdi import names, version
from nvdra_cdi.encoding.fields import (
    FIELDS,
    Boolean,
    Field,
    FieldType,
    Integer,
    ListOf,
    Object,
    String,
    StringMap,
)
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
from nvdra_cdi.validation import HOOK_NAMES

Schema = dict[str, Any]


def _version_spellings(first: str | None, end: str | None) -> list[str]:
    """The versions from `first` to before `end`, with and without a leading `v`."""
    known = version.KNOWN_VERSIONS
    start, stop = (None if each is None else known.index(each) for each in (first, end))
    return [f"{v}{each}" for each in known[start:stop] for v in ("", "v")]


_EMPTY_LIST: Schema = {"maxItems": 0}
_EMPTY_STRING: Schema = {"maxLength": 0}
_VARIABLE: Schema = {"pattern": "^[^=]+="}
_NON_EMPTY: Schema = {"minLength": 1}
_REQUIRED: Mapping[type, Sequence[str]] = {
    Spec: ("cdiVersion", "kind", "devices"),
    Device: ("name", "containerEdits"),
    DeviceNode: ("path",),
    NetDevice: ("hostInterfaceName", "name"),
    Hook: ("hookName", "path"),
    Mount: ("hostPath", "containerPath"),
}
_RULES: Mapping[tuple[type, str], Schema] = {
    (Spec, "cdiVersion"): {"enum": _version_spellings(version.EARLIEST, None)},
    (Spec, "kind"): {"pattern": f"^{names.QUALIFIER_PATTERN}/{names.QUALIFIER_PATTERN}$"},
    (Spec, "devices"): {"minItems": 1},
    (Device, "name"): {"pattern": f"^{names.DEVICE_PATTERN}$"},
    (Device, "containerEdits"): {
        "anyOf": [
            {"required": [field.key], "properties": {field.key: {"minItems": 1}}}
            for field in FIELDS[ContainerEdits]
        ]
    },
    (ContainerEdits, "env"): {"items": {"type": "string", **_VARIABLE}},
    (DeviceNode, "path"): _NON_EMPTY,
    (DeviceNode, "type"): {"enum": ["", "b", "c", "u", "p"]},
    (DeviceNode, "permissions"): {"pattern": "^([rwm]*|none)$"},
    (NetDevice, "hostInterfaceName"): _NON_EMPTY,
    (NetDevice, "name"): _NON_EMPTY,
    (Hook, "hookName"): {"enum": sorted(HOOK_NAMES)},
    (Hook, "path"): _NON_EMPTY,
    (Hook, "env"): {"items": {"type": "string", **_VARIABLE}},
    (Mount, "hostPath"): _NON_EMPTY,
    (Mount, "containerPath"): _NON_EMPTY,
    (IntelRdt, "closID"): {"pattern": r"^(/|(?!\.{1,2}$)[^/\n]*)$"},
}


def document() -> Schema:
    """The schema as dictionaries and lists."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Container Device Interface specification",
        **_object(Spec),
        "$defs": {model.__name__: _object(model) for model in FIELDS if model is not Spec},
        "allOf": [_before_version(limit, schema) for limit, schema in _BEFORE.items()]
        + [_WITHOUT_CMT],
    }


def _object(model: type) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(_REQUIRED.get(model, ())),
        "properties": {field.key: _field(model, field) for field in FIELDS[model]},
    }


def _field(model: type, field: Field) -> Schema:
    return {**_field_type(field.type), **_RULES.get((model, field.key), {})}


def _field_type(kind: FieldType) -> Schema:
    match kind:
        case String():
            return {"type": "string"}
        case Integer():
            return {"type": "integer", "minimum": kind.lowest, "maximum": kind.highest}
        case Boolean():
            return {"type": "boolean"}
        case StringMap():
            return {"type": "object", "additionalProperties": {"type": "string"}}
        case ListOf():
            return {"type": "array", "items": _field_type(kind.item_type)}
        case Object():
            return {"$ref": f"#/$defs/{kind.model.__name__}"}
        case _:
            assert_never(kind)


def _in_edits(properties: Schema) -> Schema:
    """Rules for the edits of the spec and of all devices."""
    edits = {"containerEdits": {"properties": properties}}
    return {"properties": {**edits, "devices": {"items": {"properties": edits}}}}


_NO_ANNOTATIONS: Schema = {"annotations": {"maxProperties": 0}}
_BEFORE: Mapping[str, Schema] = {
    "0.4.0": _in_edits({"mounts": {"items": {"properties": {"type": _EMPTY_STRING}}}}),
    "0.5.0": {
        "allOf": [
            {
                "properties": {
                    "devices": {"items": {"properties": {"name": {"pattern": "^[^0-9]"}}}}
                }
            },
            _in_edits({"deviceNodes": {"items": {"properties": {"hostPath": _EMPTY_STRING}}}}),
        ]
    },
    "0.6.0": {
        "properties": {
            **_NO_ANNOTATIONS,
            "devices": {"items": {"properties": _NO_ANNOTATIONS}},
            "kind": {"pattern": "^[^/]*/[^.]*$"},
        }
    },
    "0.7.0": _in_edits({"intelRdt": False, "additionalGids": _EMPTY_LIST}),
    "1.1.0": _in_edits(
        {
            "netDevices": _EMPTY_LIST,
            "intelRdt": {"properties": {"schemata": False, "enableMonitoring": {"const": False}}},
        }
    ),
}
"""The fields that a document may not use before a version."""

_WITHOUT_CMT: Schema = {
    "if": {"properties": {"cdiVersion": {"enum": _version_spellings("1.1.0", None)}}},
    "then": _in_edits({"intelRdt": {"properties": {"enableCMT": False, "enableMBM": False}}}),
}


def _before_version(limit: str, schema: Schema) -> Schema:
    return {
        "if": {"properties": {"cdiVersion": {"enum": _version_spellings(None, limit)}}},
        "then": schema,
    }
