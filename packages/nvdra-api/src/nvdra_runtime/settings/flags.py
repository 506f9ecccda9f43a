# SPDX-License-Identifier: Apache-2.0
"""The flags and variables of a settings model, and the parser of the command line.

This module handles texts only; `loader` validates them. Source: docs/reference/gpu-devices.md,
"Command line".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType, NoneType
from typing import Any, Literal, get_args, get_origin

from nvdra_api.gates import FeatureGates
from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Flag:
    """What differs from the defaults for a field's flag: `Annotated[str, Flag(group="Node")]`.

    Attributes:
        name: Name without leading dashes; the default is the field's name with dashes:
            `kube_api_qps` → `kube-api-qps`.
        env: Environment variables, of which the first one that is set is used; the default is the
            flag's name in upper snake case. Empty for a flag without a variable.
        aliases: Older names that still work.
        group: Heading in `--help`; the default is that of the previous field.
        metavar: Placeholder of the value in `--help`; the default depends on the type.
    """

    name: str | None = None
    env: tuple[str, ...] | None = None
    aliases: tuple[str, ...] = ()
    group: str = ""
    metavar: str = ""


@dataclass(frozen=True, slots=True)
class FlagEntry:
    """A field and its flag."""

    field: str
    name: str
    env: tuple[str, ...]
    aliases: tuple[str, ...]
    group: str
    metavar: str
    help: str
    default: Any
    is_required: bool
    is_switch: bool
    is_gates: bool
    is_text: bool

    @property
    def flag(self) -> str:
        """The name with its leading dashes."""
        return _with_dashes(self.name)


@dataclass(slots=True)
class ParsedCommandLine:
    """The parsed command line: texts by field, in order, and the problems."""

    values: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    wants_help: bool = False
    wants_version: bool = False


def flag_table(model: type[BaseModel]) -> tuple[FlagEntry, ...]:
    """List the flags of a model, in the order of its fields."""
    return tuple(_entries(model))


def unsupported_flags(model: type[BaseModel]) -> Mapping[str, str]:
    """What the reference driver's component supports and this one does not → what to use instead.

    The keys of the model's attribute `left_out` are `--flag` names, and variables that would change
    the behaviour of the reference driver. Other unknown variables are ignored, so that a DaemonSet
    of the reference driver works.
    """
    found: Mapping[str, str] = getattr(model, "left_out", {})
    return found


def parse(
    entries: Sequence[FlagEntry],
    argv: Sequence[str],
    unsupported: Mapping[str, str] = MappingProxyType({}),
) -> ParsedCommandLine:
    """Parse `--flag value`, `--flag=value` and both with one dash. A boolean flag needs no value.

    Args:
        entries: The known flags.
        argv: Arguments, without the command.
        unsupported: `unsupported_flags` of the model.
    """
    by_name = {name: entry for entry in entries for name in (entry.name, *entry.aliases)}
    line = ParsedCommandLine()
    positional: list[str] = []
    words = iter(argv)
    is_value_of_gone = False
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        was_value_of_gone, is_value_of_gone = is_value_of_gone, False
        if not word.startswith("-") or not name:
            if not was_value_of_gone:
                positional.append(word)
        elif name in ("help", "h"):
            line.wants_help = True
        elif name == "version":
            line.wants_version = True
        elif (instead := unsupported.get(_with_dashes(name))) is not None:
            line.problems.append(f"{_with_dashes(name)}: not supported: {instead}")
            is_value_of_gone = not equals
        elif name not in by_name:
            line.problems.append(
                f"{_with_dashes(name)}: there is no such flag{_suggestion(name, by_name)}"
            )
        elif (given := _value(by_name[name], equals, value, words)) is None:
            line.problems.append(f"{_with_dashes(name)}: the value is missing")
        else:
            line.values.setdefault(by_name[name].field, []).append(given)
    if positional:
        line.problems.append(f"arguments not supported: [{' '.join(positional)}]")
    return line


def find_variable(entry: FlagEntry, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that is used and its text. An empty one is used for plain strings only."""
    for name in entry.env:
        if (text := environ.get(name)) is not None:
            return (name, text) if text or entry.is_text else None
    return None


def _entries(model: type[BaseModel]) -> Iterator[FlagEntry]:
    group = ""
    for name, info in model.model_fields.items():
        flag = next((item for item in info.metadata if isinstance(item, Flag)), Flag())
        group = flag.group or group
        types = {info.annotation, *get_args(info.annotation)} - {NoneType}
        flag_name = flag.name or name.replace("_", "-")
        yield FlagEntry(
            field=name,
            name=flag_name,
            env=(flag_name.replace("-", "_").upper(),) if flag.env is None else flag.env,
            aliases=flag.aliases,
            group=group,
            metavar=flag.metavar or _metavar(info.annotation, types),
            help=info.description or "",
            default=None if info.is_required() else info.get_default(call_default_factory=True),
            is_required=info.is_required(),
            is_switch=bool in types,
            is_gates=FeatureGates in types,
            is_text=_is_text(info, types),
        )


def _is_text(info: FieldInfo, types: set[Any]) -> bool:
    """Whether the field is a plain string, without a validator that converts the text."""
    validators = (item for item in info.metadata if hasattr(item, "func"))
    return types == {str} and all(isinstance(item, AfterValidator) for item in validators)


def _metavar(annotation: Any, types: set[Any]) -> str:
    """The choices of a field that has choices, otherwise the kind of its value."""
    if get_origin(annotation) is Literal:
        return "|".join(filter(None, get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return "|".join(annotation)
    names = {int: "NUMBER", float: "NUMBER", bool: "true|false", FeatureGates: "NAME=true|false,…"}
    return next((text for kind, text in names.items() if kind in types), "TEXT")


def _value(entry: FlagEntry, equals: str, value: str, words: Iterator[str]) -> str | None:
    if equals:
        return value
    return "true" if entry.is_switch else next(words, None)


def _with_dashes(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _suggestion(name: str, by_name: Mapping[str, FlagEntry]) -> str:
    import difflib  # imported here because only a mistyped flag needs it

    close = difflib.get_close_matches(name, by_name, n=1)
    return f"; did you mean {_with_dashes(close[0])}?" if close else ""
