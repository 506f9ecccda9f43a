"""The JSON schema of CDI documents, draft 2020-12, made from the tables that the code works by.

For editors and for people; the code decides. It cannot say everything: that names differ from each
other, or how many bytes a class of `intelRdt` may have (spec/cdi.md §11).
"""

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from nvdra_cdi import names, version
from nvdra_cdi.fields import FIELDS, Field, Flag, Items, Kind, Number, Object, Text, TextMap
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
from nvdra_cdi.validate import HOOK_NAMES

Schema = dict[str, Any]


def _spelled(first: str | None, end: str | None) -> list[str]:
    """The versions from `first` to before `end`, with and without the `v` that is ignored."""
    known = version.KNOWN_VERSIONS
    start, stop = (None if each is None else known.index(each) for each in (first, end))
    return [f"{v}{each}" for each in known[start:stop] for v in ("", "v")]


_NOTHING: Schema = {"maxItems": 0}
_NO_TEXT: Schema = {"maxLength": 0}
_VARIABLE: Schema = {"pattern": "^[^=]+="}
_SOME_TEXT: Schema = {"minLength": 1}
_REQUIRED: Mapping[type, Sequence[str]] = {
    Spec: ("cdiVersion", "kind", "devices"),
    Device: ("name", "containerEdits"),
    DeviceNode: ("path",),
    NetDevice: ("hostInterfaceName", "name"),
    Hook: ("hookName", "path"),
    Mount: ("hostPath", "containerPath"),
}
_RULES: Mapping[tuple[type, str], Schema] = {
    (Spec, "cdiVersion"): {"enum": _spelled(version.EARLIEST, None)},
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
    (DeviceNode, "path"): _SOME_TEXT,
    (DeviceNode, "type"): {"enum": ["", "b", "c", "u", "p"]},
    (DeviceNode, "permissions"): {"pattern": "^([rwm]*|none)$"},
    (NetDevice, "hostInterfaceName"): _SOME_TEXT,
    (NetDevice, "name"): _SOME_TEXT,
    (Hook, "hookName"): {"enum": sorted(HOOK_NAMES)},
    (Hook, "path"): _SOME_TEXT,
    (Hook, "env"): {"items": {"type": "string", **_VARIABLE}},
    (Mount, "hostPath"): _SOME_TEXT,
    (Mount, "containerPath"): _SOME_TEXT,
    (IntelRdt, "closID"): {"pattern": r"^(/|(?!\.{1,2}$)[^/\n]*)$"},
}


def document() -> Schema:
    """The schema, as plain data."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Container Device Interface specification",
        **_object(Spec),
        "$defs": {model.__name__: _object(model) for model in FIELDS if model is not Spec},
        "allOf": [_below(limit, schema) for limit, schema in _BEFORE.items()] + [_WITHOUT_CMT],
    }


def _object(model: type) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(_REQUIRED.get(model, ())),
        "properties": {field.key: _field(model, field) for field in FIELDS[model]},
    }


def _field(model: type, field: Field) -> Schema:
    return {**_kind(field.kind), **_RULES.get((model, field.key), {})}


def _kind(kind: Kind) -> Schema:
    match kind:
        case Text():
            return {"type": "string"}
        case Number():
            return {"type": "integer", "minimum": kind.lowest, "maximum": kind.highest}
        case Flag():
            return {"type": "boolean"}
        case TextMap():
            return {"type": "object", "additionalProperties": {"type": "string"}}
        case Items():
            return {"type": "array", "items": _kind(kind.of)}
        case Object():
            return {"$ref": f"#/$defs/{kind.model.__name__}"}
        case _:
            assert_never(kind)


def _in_edits(properties: Schema) -> Schema:
    """Rules about fields of every set of edits, the spec's and the devices'."""
    edits = {"containerEdits": {"properties": properties}}
    return {"properties": {**edits, "devices": {"items": {"properties": edits}}}}


_NO_ANNOTATIONS: Schema = {"annotations": {"maxProperties": 0}}
_BEFORE: Mapping[str, Schema] = {
    "0.4.0": _in_edits({"mounts": {"items": {"properties": {"type": _NO_TEXT}}}}),
    "0.5.0": {
        "allOf": [
            {
                "properties": {
                    "devices": {"items": {"properties": {"name": {"pattern": "^[^0-9]"}}}}
                }
            },
            _in_edits({"deviceNodes": {"items": {"properties": {"hostPath": _NO_TEXT}}}}),
        ]
    },
    "0.6.0": {
        "properties": {
            **_NO_ANNOTATIONS,
            "devices": {"items": {"properties": _NO_ANNOTATIONS}},
            "kind": {"pattern": "^[^/]*/[^.]*$"},
        }
    },
    "0.7.0": _in_edits({"intelRdt": False, "additionalGids": _NOTHING}),
    "1.1.0": _in_edits(
        {
            "netDevices": _NOTHING,
            "intelRdt": {"properties": {"schemata": False, "enableMonitoring": {"const": False}}},
        }
    ),
}
"""What a document may not use before a version."""

_WITHOUT_CMT: Schema = {
    "if": {"properties": {"cdiVersion": {"enum": _spelled("1.1.0", None)}}},
    "then": _in_edits({"intelRdt": {"properties": {"enableCMT": False, "enableMBM": False}}}),
}


def _below(limit: str, schema: Schema) -> Schema:
    return {"if": {"properties": {"cdiVersion": {"enum": _spelled(None, limit)}}}, "then": schema}
