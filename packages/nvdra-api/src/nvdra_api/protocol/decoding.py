"""A JSON document → one of the config kinds, strictly or tolerantly.

Strictly what comes from a user: a field we do not know is a typo. Tolerantly what a release of this
driver has stored: it may have been a newer one. Source: spec/api-and-webhook.md §2.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nvdra_api.types.configs import KINDS, TOLERANT, DriverConfig
from nvdra_api.types.names import CONFIG_API_VERSION, CONFIG_GROUP

MAX_FIELDS: Final = 100
"""Unknown and duplicate fields told at once."""

_BY_KIND: Final = {config.kind: config for kinds in KINDS.values() for config in kinds}
_EXPECTED: Final = {
    "int_type": "integer",
    "bool_type": "boolean",
    "string_type": "string",
    "model_type": "object",
    "dict_type": "object",
    "quantity_type": "quantity",
}
_JSON_TYPES: Final = (
    (bool, "boolean"),
    (int | float, "number"),
    (str, "string"),
    (list, "array"),
    (Mapping, "object"),
)


class DecodeError(ValueError):
    """A document is not a config; the text says why, in the API machinery's words."""


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its fields were written twice."""

    duplicates: tuple[str, ...] = ()

    @classmethod
    def of(cls, pairs: list[tuple[str, Any]]) -> "_Object":
        made = cls(pairs)
        if len(made) < len(pairs):
            counted = Counter(name for name, _ in pairs)
            made.duplicates = tuple(name for name, times in counted.items() if times > 1)
        return made


def decode(text: str | bytes, *, strict: bool) -> DriverConfig:
    """Read a config from JSON as it was written.

    Raises:
        DecodeError: It is not one.
    """
    try:
        value = json.loads(text, object_pairs_hook=_Object.of, parse_constant=_refuse_constant)
        return _decode(value, text.decode() if isinstance(text, bytes) else text, strict=strict)
    except RecursionError as error:
        raise _unreadable("nested too deeply") from error
    except DecodeError:
        raise
    except ValueError as error:
        raise _unreadable(str(error)) from error


def decode_value(value: Any, *, strict: bool) -> DriverConfig:
    """Read a config from JSON that is parsed already, as in an object from the API server.

    Raises:
        DecodeError: It is not one.
    """
    try:
        return _decode(value, json.dumps(value, separators=(",", ":")), strict=strict)
    except RecursionError as error:
        raise _unreadable("nested too deeply") from error


def _decode(value: Any, raw: str, *, strict: bool) -> DriverConfig:
    model = _model(value, raw)
    body = {name: field for name, field in value.items() if name not in ("apiVersion", "kind")}
    try:
        config = model.model_validate(
            body,
            extra="forbid" if strict else "ignore",
            by_alias=True,
            by_name=False,
            context={TOLERANT: not strict},
        )
    except ValidationError as error:
        details = error.errors(include_url=False)
        if wrong := [_wrong_type(detail) for detail in details if not _is_unknown(detail)]:
            raise DecodeError("; ".join(wrong)) from error
        unknown = [_path(detail["loc"]) for detail in details]
    else:
        unknown = []
    if strict:
        order = list(_paths(value)) if unknown else []
        entries = [f'unknown field "{path}"' for path in sorted(unknown, key=order.index)]
        entries += [f'duplicate field "{path}"' for path in _duplicates(value)]
        if entries:
            raise DecodeError(f"strict decoding error: {', '.join(entries[:MAX_FIELDS])}")
    return config


def _model(value: Any, raw: str) -> type[DriverConfig]:
    if value is not None and not isinstance(value, Mapping):
        raise _unreadable(f"expected an object, got {_json_type(value)}")
    names = {name: (value or {}).get(name) or "" for name in ("kind", "apiVersion")}
    for name, text in names.items():
        if not isinstance(text, str):
            raise _unreadable(f"{name} is {_json_type(text)}, expected string")
    kind, version = names["kind"], names["apiVersion"]
    if not kind:
        raise DecodeError(f"Object 'Kind' is missing in '{raw}'")
    if not version:
        raise DecodeError(f"Object 'apiVersion' is missing in '{raw}'")
    if version.count("/") > 1:
        raise DecodeError(f"unexpected GroupVersion string: {version}")
    if version != CONFIG_API_VERSION or kind not in _BY_KIND:
        raise DecodeError(
            f'no kind "{kind}" is registered for version "{version}" in scheme "{CONFIG_GROUP}"'
        )
    return _BY_KIND[kind]


def _wrong_type(detail: ErrorDetails) -> str:
    if detail["type"] == "quantity":
        return detail["msg"]
    expected = _EXPECTED.get(detail["type"], detail["type"])
    return (
        f"cannot decode {_json_type(detail['input'])} into field "
        f'"{_path(detail["loc"])}": expected {expected}'
    )


def _is_unknown(detail: ErrorDetails) -> bool:
    return detail["type"] == "extra_forbidden"


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def _paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Every field, in the order of the document."""
    if isinstance(value, Mapping):
        for name, field in value.items():
            yield f"{prefix}{name}"
            yield from _paths(field, f"{prefix}{name}.")


def _duplicates(value: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(value, _Object):
        yield from (f"{prefix}{name}" for name in value.duplicates)
    if isinstance(value, Mapping):
        for name, field in value.items():
            yield from _duplicates(field, f"{prefix}{name}.")


def _json_type(value: Any) -> str:
    return next((name for kind, name in _JSON_TYPES if isinstance(value, kind)), "null")


def _unreadable(why: str) -> DecodeError:
    return DecodeError(f"couldn't get version/kind; json parse error: {why}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
