# SPDX-License-Identifier: Apache-2.0
"""Decoding of JSON documents into the kinds of `nvdra_api.v1beta1`.

Strict decoding refuses unknown and duplicate fields, because in a document from a user they are
mistakes. Tolerant decoding ignores them, because a stored document may have been written by a newer
release. Neither validates values; see `problems` of each kind for that. `json_text` has the bounds
of a document; an error quotes some hundred characters of it.
Source: docs/reference/api-types.md, "Decoding".
"""

import difflib
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Generic, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nvdra_api import json_text, texts
from nvdra_api.json_text import OutOfBoundsError
from nvdra_api.meta import ApiModel, WireModel
from nvdra_api.names import NVIDIA_API_VERSION, NVIDIA_GROUP
from nvdra_api.quantity import TOLERANT
from nvdra_api.v1beta1 import (
    CONFIGS_BY_DRIVER,
    ComputeDomain,
    ComputeDomainClique,
    DeviceConfig,
)
from nvdra_api.validation import Problem

MAX_REPORTED_FIELDS: Final = 10
"""How many unknown and duplicate fields one error names. Of each, the most similar known field is
looked for, which takes 0.5 ms, and a claim may have 32 configs."""
_MAX_QUOTED: Final = 200
"""How many characters of a document, or of a path in it, an error quotes at once."""
_MAX_FIELD_NAME: Final = 64
"""The longest unknown field that is compared with the known ones, which takes quadratic time."""

_QUANTITY_REMEDY: Final = "write a quantity such as 512Mi or 10G"
_EXPECTED: Final = {
    "int_type": "integer",
    "bool_type": "boolean",
    "string_type": "string",
    "model_type": "object",
    "dict_type": "object",
    "tuple_type": "array",
    "quantity_type": "quantity",
}
_REMEDIES: Final = {
    "integer": "write a whole number without quotes",
    "boolean": "write true or false without quotes",
    "string": "write it in quotes",
    "quantity": _QUANTITY_REMEDY,
}
"""What to write where another type is given, by the type that is expected."""
_JSON_TYPES: Final = (
    (bool, "boolean"),
    (int | float, "number"),
    (str, "string"),
    (list, "array"),
    (Mapping, "object"),
)

KindT = TypeVar("KindT", bound=WireModel)
_Location: TypeAlias = tuple[int | str, ...]
"""The names and indices on the way from the document to a part of it."""


class DecodeError(ValueError):
    """A document cannot be decoded. The error texts are those of the Kubernetes API machinery.

    Attributes:
        problems: What is wrong, with the field of each if it is known.
    """

    def __init__(self, text: str, problems: Iterable[Problem] = ()) -> None:
        super().__init__(text)
        self.problems = tuple(problems) or (Problem("", text),)

    @property
    def remedy(self) -> str:
        """What to write instead of each; empty if the text says it."""
        return "; ".join(filter(None, (problem.remedy for problem in self.problems)))


class _Object(dict[str, Any]):
    """A JSON object that remembers its duplicate fields."""

    duplicates: tuple[str, ...] = ()

    @classmethod
    def from_pairs(cls, pairs: list[tuple[str, Any]]) -> "_Object":
        made = cls(pairs)
        if len(made) < len(pairs):
            counted = Counter(name for name, _ in pairs)
            made.duplicates = tuple(name for name, times in counted.items() if times > 1)
        return made


def parse(text: str | bytes) -> Any:
    """Parse JSON such that strict decoding of a part of it notices fields that are duplicate.

    Raises:
        OutOfBoundsError: The text exceeds a bound.
        JsonTextError: The text is not JSON.
    """
    checked = json_text.check(text)
    try:
        return _DECODER.decode(checked)
    except ValueError as error:
        raise json_text.refusal(checked) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_Object.from_pairs,
    parse_float=json_text.finite,
    parse_constant=_refuse_constant,
)


class Scheme(Generic[KindT]):
    """A set of kinds, and the decoder that returns an object of one of them."""

    def __init__(self, kinds: Iterable[type[KindT]]) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}

    def decode(self, text: str | bytes, *, strict: bool) -> KindT:
        """Decode a JSON text.

        Raises:
            DecodeError: The text is not a document of one of the kinds.
        """
        try:
            value = parse(text)
        except OutOfBoundsError as error:
            problem = Problem(error.path, error.why, remedy="shorten or correct it")
            raise DecodeError(str(error), [problem]) from error
        except ValueError as error:
            raise _unreadable(str(error)) from error
        return self._decode(value, text, strict=strict)

    def decode_value(self, value: Any, *, strict: bool) -> KindT:
        """Decode JSON that `parse` has returned, such as a part of an object from the API server.

        Raises:
            DecodeError: The value is not a document of one of the kinds.
        """
        return self._decode(value, None, strict=strict)

    def _decode(self, value: Any, raw: str | bytes | None, *, strict: bool) -> KindT:
        kind = self._kind(value, raw)
        unknown: list[_Location] = []
        try:
            decoded = _validate(kind, value, strict=strict)
        except ValidationError as error:
            details = error.errors(include_url=False)
            if wrong := [detail for detail in details if detail["type"] != "extra_forbidden"]:
                problems = [_wrong_type(detail) for detail in wrong[:MAX_REPORTED_FIELDS]]
                text = "; ".join(problem.text for problem in problems)
                raise DecodeError(text, problems) from error
            unknown = [detail["loc"] for detail in details]
        if strict and (unknown or _has_duplicates(value or {})):
            entries = [
                _unknown_field(kind, location)
                for location in islice(_in_order(value, unknown), MAX_REPORTED_FIELDS)
            ]
            duplicates = map(_path, _duplicates(value))
            entries += [
                Problem(path, f'duplicate field "{path}"', remedy="write it once")
                for path in islice(duplicates, MAX_REPORTED_FIELDS - len(entries))
            ]
            shown = ", ".join(problem.text for problem in entries)
            raise DecodeError(f"strict decoding error: {shown}", entries)
        return decoded

    def _kind(self, value: Any, raw: str | bytes | None) -> type[KindT]:
        if value is not None and not isinstance(value, Mapping):
            raise _unreadable(f"expected an object, got {_json_type(value)}")
        fields = value or {}
        kind, version = fields.get("kind") or "", fields.get("apiVersion") or ""
        for name, text in (("kind", kind), ("apiVersion", version)):
            if not isinstance(text, str):
                raise _unreadable(f"{name} is {_json_type(text)}, expected string")
        if not (kind and version):
            missing = "apiVersion" if kind else "Kind"
            raise DecodeError(f"Object '{missing}' is missing in '{_shown(value, raw)}'")
        if version.count("/") > 1:
            raise DecodeError(f"unexpected GroupVersion string: {_quoted(version)}")
        if version != NVIDIA_API_VERSION or kind not in self._kinds:
            raise DecodeError(
                f'no kind "{_quoted(kind)}" is registered for version "{_quoted(version)}" in '
                f'scheme "{NVIDIA_GROUP}"'
            )
        return self._kinds[kind]


CONFIGS: Final = Scheme[DeviceConfig](
    config for configs in CONFIGS_BY_DRIVER.values() for config in configs
)
"""The kinds of opaque device configs."""
OBJECTS: Final = Scheme[ComputeDomain | ComputeDomainClique]((ComputeDomain, ComputeDomainClique))
"""The kinds of custom resources."""


def decode_config(driver: str, parameters: str | bytes) -> DeviceConfig:
    """Decode the JSON text of a driver's opaque parameters strictly, as a user has written it.

    Raises:
        DecodeError: The parameters are no config of this driver.
    """
    if len(parameters) > json_text.MAX_CONFIG_BYTES:
        raise DecodeError(
            f"the parameters have {len(parameters)} bytes, more than {json_text.MAX_CONFIG_BYTES}"
        )
    return _config(driver, CONFIGS.decode, parameters)


def decode_config_value(driver: str, parameters: Any) -> DeviceConfig:
    """Decode opaque parameters that `parse` has returned.

    Raises:
        DecodeError: The parameters are no config of this driver.
    """
    return _config(driver, CONFIGS.decode_value, parameters)


@functools.cache
def kinds_remedy(driver: str) -> str:
    """Which kinds of config a driver has: what to write instead of something that is none."""
    kinds = ", ".join(kind.kind for kind in CONFIGS_BY_DRIVER[driver])
    return f"kinds of {driver} are {kinds}, of {NVIDIA_API_VERSION}"


def _config(driver: str, decode: Callable[..., DeviceConfig], parameters: Any) -> DeviceConfig:
    """Decode strictly. An error about the whole document that has no remedy gets that one."""
    try:
        return _accepted(driver, decode(parameters, strict=True))
    except DecodeError as error:
        if not (first := error.problems[0]).field and not first.remedy:
            error.problems = (Problem("", first.text, remedy=kinds_remedy(driver)),)
        raise


def _accepted(driver: str, config: DeviceConfig) -> DeviceConfig:
    if isinstance(config, CONFIGS_BY_DRIVER[driver]):
        return config
    raise DecodeError(f"{driver} does not accept {config.kind}")


def _validate(kind: type[KindT], value: Mapping[str, Any], *, strict: bool) -> KindT:
    how: dict[str, Any] = {
        "extra": "forbid" if strict else "ignore",
        "by_alias": True,
        "by_name": False,
        "context": {TOLERANT: not strict},
    }
    if issubclass(kind, ApiModel):
        how["extra"] = "forbid" if strict else None
        return kind.model_validate_json(json.dumps(_without_nulls(value)), strict=strict, **how)
    body = {name: field for name, field in value.items() if name not in ("apiVersion", "kind")}
    return kind.model_validate(body, **how)


def _without_nulls(value: Any) -> Any:
    """Drop the fields of objects that are null, which Kubernetes treats as unset."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


def _shown(value: Any, raw: str | bytes | None) -> str:
    """The beginning of the JSON text of a document, as it was given if it was."""
    if raw is None:
        encoder = json.JSONEncoder(separators=(",", ":"))
        raw = "".join(islice(encoder.iterencode(value), _MAX_QUOTED))
    return _quoted(raw.decode() if isinstance(raw, bytes) else raw)


def _quoted(text: str) -> str:
    return texts.shortened(text, _MAX_QUOTED)


def _wrong_type(detail: ErrorDetails) -> Problem:
    path = _path(detail["loc"])
    if detail["type"] == "quantity":
        return Problem(path, detail["msg"], remedy=_QUANTITY_REMEDY)
    if detail["type"] == "quantity_bound":
        return Problem(path, f"{path}: {detail['msg']}", remedy=_QUANTITY_REMEDY)
    if detail["type"] == "missing":
        return Problem(path, f'missing required field "{path}"')
    expected = _EXPECTED.get(detail["type"], detail["type"])
    given = _json_type(detail["input"])
    return Problem(
        path,
        f'cannot decode {given} into field "{path}": expected {expected}',
        remedy=_REMEDIES.get(expected, ""),
    )


def _unknown_field(kind: type[BaseModel], location: _Location) -> Problem:
    path = _path(location)
    *parents, name = map(str, location)
    remedy = _known_field(kind, tuple(parents), name if len(name) <= _MAX_FIELD_NAME else "")
    return Problem(path, f'unknown field "{path}"', remedy=remedy)


@functools.lru_cache(maxsize=256)
def _known_field(kind: type[BaseModel], parents: tuple[str, ...], name: str) -> str:
    """Say which field may be meant by an unknown one, from those of its object."""
    model: type[BaseModel] = kind
    for parent in parents:
        found = _models_by_field(model).get(parent)
        if found is None:
            return ""
        model = found
    known = list(_models_by_field(model))
    if model is kind:
        known = ["apiVersion", "kind", *known]
    close = difflib.get_close_matches(name, known, n=1) or [
        each for each in known if each.lower() == name.lower()
    ]
    return f'did you mean "{close[0]}"?' if close else f"known here: {', '.join(known)}"


def _models_by_field(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The model of each field by its JSON name; None for a field that is no object."""
    found: dict[str, type[BaseModel] | None] = {}
    for name, info in model.model_fields.items():
        types = (info.annotation, *get_args(info.annotation))
        models = (each for each in types if isinstance(each, type) and issubclass(each, BaseModel))
        found[info.alias or name] = next(models, None)
    return found


def _path(location: _Location) -> str:
    parts = (
        f"[{part}]" if isinstance(part, int) else f".{texts.shortened(part, _MAX_FIELD_NAME)}"
        for part in location
    )
    return _quoted("".join(parts).removeprefix("."))


def _in_order(value: Any, fields: Iterable[_Location]) -> Iterator[_Location]:
    """Yield these fields in the order of the document."""
    left = dict.fromkeys(fields)
    if len(left) == 1:  # as usual
        yield left.popitem()[0]
    for location, _ in _parts(value):
        if location in left:
            del left[location]
            yield location
        if not left:
            return


def _parts(value: Any) -> Iterator[tuple[_Location, Any]]:
    """Yield every object, array and value with its location, in the order of the document."""
    rest: list[tuple[_Location, Any]] = [((), value)]
    while rest:
        location, part = rest.pop()
        yield location, part
        names: Iterable[int | str] = ()
        if isinstance(part, dict):
            names = reversed(part)
        elif isinstance(part, list):
            names = reversed(range(len(part)))
        rest += [((*location, name), part[name]) for name in names]


def _has_duplicates(value: Any) -> bool:
    """Whether there are any; the paths of all would cost more than the whole decoding."""
    if isinstance(value, _Object) and value.duplicates:
        return True
    parts = value.values() if isinstance(value, dict) else value
    return any(isinstance(part, (dict, list)) and _has_duplicates(part) for part in parts)


def _duplicates(value: Any) -> Iterator[_Location]:
    """Yield every field that occurs more than once in its object."""
    for location, part in _parts(value) if _has_duplicates(value) else ():
        if isinstance(part, _Object):
            yield from ((*location, name) for name in part.duplicates)


def _json_type(value: Any) -> str:
    return next((name for kind, name in _JSON_TYPES if isinstance(value, kind)), "null")


def _unreadable(why: str) -> DecodeError:
    return DecodeError(f"couldn't get version/kind; json parse error: {why}")
