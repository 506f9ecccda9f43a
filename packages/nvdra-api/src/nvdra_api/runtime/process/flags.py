"""A settings model as a table of flags and variables, and the command line read by that table.

Texts only: `settings` turns them into values. Source: style.md §14, spec/gpu-devices.md §2.1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, NoneType
from typing import Any, get_args

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from nvdra_api.types.gates import Gates


@dataclass(frozen=True, slots=True)
class Flag:
    """What a field's name does not say about its flag: `Annotated[str, Flag(group="Node")]`.

    Attributes:
        name: Without dashes; by default the field's name with dashes, `kube_api_qps` →
            `kube-api-qps`.
        env: Variables, the first one that is set counts; by default the flag's name in upper snake
            case; empty for a flag that has none.
        aliases: Older names that still work.
        group: Heading in `--help`; by default that of the field before.
        metavar: What `--help` shows for the value; by default by type.
    """

    name: str | None = None
    env: tuple[str, ...] | None = None
    aliases: tuple[str, ...] = ()
    group: str = ""
    metavar: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the table: a field and everything it is called outside."""

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
        """With its dashes, as people write it."""
        return _dashed(self.name)


@dataclass(slots=True)
class CommandLine:
    """What was written: texts by field, in order, and what cannot be understood."""

    values: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    wants_help: bool = False
    wants_version: bool = False


def table(model: type[BaseModel]) -> tuple[Entry, ...]:
    """The flags of a model, in the order of its fields."""
    return tuple(_entries(model))


def left_out(model: type[BaseModel]) -> Mapping[str, str]:
    """What the reference driver's component reads and this one does not → what to use instead.

    The model's attribute `left_out`, by `--flag` as it is written, or by the name of a variable
    that would have changed what the process does; other variables that nobody reads are let be, so
    that a DaemonSet of the reference serves.
    """
    found: Mapping[str, str] = getattr(model, "left_out", {})
    return found


def parse(
    entries: Sequence[Entry], argv: Sequence[str], gone: Mapping[str, str] = MappingProxyType({})
) -> CommandLine:
    """Read `--flag value`, `--flag=value` and both with one dash; a switch needs no value.

    Args:
        entries: The flags there are.
        argv: Without the command.
        gone: `left_out` of the model.
    """
    by_name = {name: entry for entry in entries for name in (entry.name, *entry.aliases)}
    line = CommandLine()
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
        elif (instead := gone.get(_dashed(name))) is not None:
            line.problems.append(f"{_dashed(name)}: left out: {instead}")
            is_value_of_gone = not equals
        elif name not in by_name:
            line.problems.append(f"{_dashed(name)}: there is no such flag{_meant(name, by_name)}")
        elif (given := _value(by_name[name], equals, value, words)) is None:
            line.problems.append(f"{_dashed(name)}: a value is missing")
        else:
            line.values.setdefault(by_name[name].field, []).append(given)
    if positional:
        line.problems.append(f"arguments not supported: [{' '.join(positional)}]")
    return line


def variable(entry: Entry, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that counts and its text; an empty one counts for plain strings only."""
    for name in entry.env:
        if (text := environ.get(name)) is not None:
            return (name, text) if text or entry.is_text else None
    return None


def _entries(model: type[BaseModel]) -> Iterator[Entry]:
    group = ""
    for name, info in model.model_fields.items():
        flag = next((item for item in info.metadata if isinstance(item, Flag)), Flag())
        group = flag.group or group
        types = {info.annotation, *get_args(info.annotation)} - {NoneType}
        flag_name = flag.name or name.replace("_", "-")
        yield Entry(
            field=name,
            name=flag_name,
            env=(flag_name.replace("-", "_").upper(),) if flag.env is None else flag.env,
            aliases=flag.aliases,
            group=group,
            metavar=flag.metavar or _metavar(types),
            help=info.description or "",
            default=None if info.is_required() else info.get_default(call_default_factory=True),
            is_required=info.is_required(),
            is_switch=bool in types,
            is_gates=Gates in types,
            is_text=_is_text(info, types),
        )


def _is_text(info: FieldInfo, types: set[Any]) -> bool:
    """Plain strings: no other type, and no validator that turns texts into something else."""
    turning = (item for item in info.metadata if hasattr(item, "func"))
    return types == {str} and all(isinstance(item, AfterValidator) for item in turning)


def _metavar(types: set[Any]) -> str:
    names = {int: "NUMBER", float: "NUMBER", bool: "true|false", Gates: "NAME=true|false,…"}
    return next((text for kind, text in names.items() if kind in types), "TEXT")


def _value(entry: Entry, equals: str, value: str, words: Iterator[str]) -> str | None:
    if equals:
        return value
    return "true" if entry.is_switch else next(words, None)


def _dashed(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _meant(name: str, by_name: Mapping[str, Entry]) -> str:
    import difflib  # only a typing mistake needs it

    close = difflib.get_close_matches(name, by_name, n=1)
    return f"; did you mean {_dashed(close[0])}?" if close else ""
