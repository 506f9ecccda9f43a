# SPDX-License-Identifier: Apache-2.0
"""Strategies for bytes: JSON and YAML by their grammars, and mutations of valid documents.

Sizes, depths and numbers of digits are drawn on a logarithmic scale, so that small and large ones
are equally frequent. No strategy is made for a known fault: what is drawn here is what the grammar
of JSON allows, and what happens to bytes on their way.
"""

import functools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

MAX_DEPTH: Final = 30_000
MAX_LENGTH: Final = 20_000
"""Characters of a text, digits of a number, and repetitions."""
_EXPONENT_DIGITS: Final = st.integers(1, 12)
MAX_BYTES: Final = 1 << 20
"""Of one part of a document."""

Path = tuple[int, ...]


class JsonText(str):
    """A part of a document that is written as it is."""

    __slots__ = ()


class Members(list[tuple[Any, Any]]):
    """An object as its members in order. Unlike a dict it can have a name twice."""

    __slots__ = ()


# Strategies without parameters are made once: Hypothesis examines each new one, which takes longer
# than to draw from it.
_STEPS: Final = 100
_BITS: Final = st.booleans()
_OF_4: Final = st.integers(0, 3)
_OF_10: Final = st.integers(0, 9)
_OF_20: Final = st.integers(0, 19)


def _power(maximum: int, step: int) -> int:
    return int(0.5 + math.pow(maximum, step / _STEPS))


@functools.cache
def sizes(maximum: int) -> SearchStrategy[int]:
    """A number from 1 to `maximum`, as often of one order of magnitude as of another."""
    return st.integers(0, _STEPS).map(functools.partial(_power, maximum))


def _size(draw: DrawFn, maximum: int) -> int:
    """As `sizes`, for a maximum that is hardly ever the same."""
    return _power(max(1, maximum), draw(st.integers(0, _STEPS)))


_GENERATORS: Final = st.integers(0, 2**32 - 1).map(random.Random)
"""A generator of random numbers for what has many parts, such as the digits of a number."""
_UNIT: Final = 200
"""What is longer is made of parts that are equal, which takes less time."""


def _long(make: Callable[[int], str], count: int) -> str:
    """A text of `count` parts."""
    unit = make(min(count, _UNIT))
    return unit if count <= _UNIT else unit * (count // _UNIT)


def _digits(draw: DrawFn, maximum: int = MAX_LENGTH) -> str:
    """Decimal digits without leading zeros."""
    source, count = draw(_GENERATORS), draw(sizes(maximum))
    return source.choice("123456789") + _long(
        lambda k: "".join(source.choices("0123456789", k=k)), count - 1
    )


def _exponent(draw: DrawFn) -> str:
    return "".join(draw(_GENERATORS).choices("0123456789", k=draw(_EXPONENT_DIGITS)))


_SIGNS: Final = st.sampled_from(("", "", "-"))
_MARKS: Final = st.sampled_from(("e", "E", "e+", "e-"))


def _number(draw: DrawFn) -> str:
    """A number of JSON."""
    form = draw(_OF_4)
    whole = "0" if form == 0 else _digits(draw, 8 if form < 3 else MAX_LENGTH)
    fraction = f".{_digits(draw)}" if draw(_OF_4) == 0 else ""
    exponent = f"{draw(_MARKS)}{_exponent(draw)}" if draw(_BITS) else ""
    return f"{draw(_SIGNS)}{whole}{fraction}{exponent}"


_PLAIN: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/ "


def _plain(source: random.Random) -> str:
    return source.choice(_PLAIN)


def _escape(source: random.Random) -> str:
    """Any escape of four hexadecimal digits."""
    return f"\\u{source.randrange(0x10000):04x}"


def _short_escape(source: random.Random) -> str:
    return f"\\{source.choice('bfnrt/')}"


def _code_point(source: random.Random) -> str:
    """Any code point, as it is; what is written cannot be decoded if it is no character."""
    found = chr(source.randrange(0x20, 0x110000))
    return f"\\{found}" if found in '"\\' else found


_CHARACTERS: Final = (_plain, _escape, _short_escape, _code_point)
_ALPHABETS: Final = st.lists(st.sampled_from(_CHARACTERS), min_size=1, max_size=3)
_UNITS: Final = st.text("kmnupshKMGTPEi%", max_size=3)


def _text_body(draw: DrawFn) -> str:
    """What can be between the quotes of a string of JSON."""
    source, kinds = draw(_GENERATORS), draw(_ALPHABETS)
    count = draw(sizes(12 if draw(_BITS) else MAX_LENGTH))
    if draw(_OF_4) == 0:  # the same again and again
        return source.choice(kinds)(source) * count
    return _long(lambda k: "".join(source.choice(kinds)(source) for _ in range(k)), count)


def _numeric_text(draw: DrawFn) -> str:
    """A number in a text, with or without letters behind it, such as a quantity or a duration."""
    return f"{_number(draw)}{draw(_UNITS) if draw(_BITS) else ''}"


def _string(draw: DrawFn) -> str:
    """A string of JSON, with its quotes."""
    form = draw(_OF_10)
    body = "" if form == 0 else _numeric_text(draw) if form <= 3 else _text_body(draw)
    return f'"{body}"'


_WORDS: Final = st.sampled_from(("null", "true", "false"))


def _scalar(draw: DrawFn) -> str:
    """A value of JSON without parts."""
    form = draw(_OF_4)
    return draw(_WORDS) if form == 0 else _number(draw) if form == 1 else _string(draw)


_LEVELS: Final = st.lists(st.booleans(), min_size=1, max_size=3)


def _nested(draw: DrawFn, inner: str | None = None) -> str:
    """Arrays and objects in one another around a value."""
    inner = _scalar(draw) if inner is None else inner
    depth = draw(sizes(MAX_DEPTH))
    order = draw(_LEVELS)
    name = _string(draw) if draw(_BITS) else '"a"'
    name = name if len(name) * depth < MAX_BYTES else '"a"'
    opening = [f"{{{name}:" if is_object else "[" for is_object in order]
    closing = ["}" if is_object else "]" for is_object in order]
    times, rest = divmod(depth, len(order))
    return (
        f"{''.join(opening) * times}{''.join(opening[:rest])}{inner}"
        f"{''.join(closing[:rest][::-1])}{''.join(closing[::-1]) * times}"
    )


def _value(draw: DrawFn) -> str:
    """Any value of JSON."""
    form = draw(_OF_10)
    if form <= 3:
        return _scalar(draw)
    if form <= 5:
        return _nested(draw)
    items = [_scalar(draw) for _ in range(draw(_OF_4))]
    if draw(_BITS) and items:
        items *= _size(draw, min(MAX_LENGTH, MAX_BYTES // sum(map(len, items))))
    if form <= 7:
        return f"[{','.join(items)}]"
    names = [_string(draw) for _ in range(draw(_OF_4))]
    return f"{{{','.join(f'{name}:{item}' for name, item in zip(names, items, strict=False))}}}"


@st.composite
def scalars(draw: DrawFn) -> str:
    """A value of JSON without parts."""
    return _scalar(draw)


def as_tree(value: Any) -> Any:
    """A parsed document with `Members` in place of dictionaries."""
    if isinstance(value, dict):
        return Members((name, as_tree(each)) for name, each in value.items())
    return [as_tree(each) for each in value] if isinstance(value, list) else value


def render(tree: Any) -> str:
    """The JSON text of a tree."""
    if isinstance(tree, JsonText):
        return tree
    if isinstance(tree, Members):
        return f"{{{','.join(f'{render(name)}:{render(each)}' for name, each in tree)}}}"
    if isinstance(tree, list):
        return f"[{','.join(map(render, tree))}]"
    return json.dumps(tree)


def encode(text: str) -> bytes:
    """UTF-8; code points that are no characters are written as UTF-8 would, if it had them."""
    return text.encode("utf-8", "surrogatepass")


def _places(tree: Any, at: Path = ()) -> Iterator[Path]:
    yield at
    if isinstance(tree, list) and not isinstance(tree, str):
        for index, each in enumerate(tree):
            yield from _places(each[1] if isinstance(tree, Members) else each, (*at, index))


def _at(tree: Any, path: Path) -> Any:
    for index in path:
        tree = tree[index][1] if isinstance(tree, Members) else tree[index]
    return tree


def _with(tree: Any, path: Path, value: Any) -> Any:
    """The tree with another value at a place."""
    if not path:
        return value
    index, *rest = path
    changed = type(tree)(tree)
    if isinstance(tree, Members):
        name, former = tree[index]
        changed[index] = (name, _with(former, tuple(rest), value))
    else:
        changed[index] = _with(tree[index], tuple(rest), value)
    return changed


def _without(tree: Any, path: Path) -> Any:
    *parents, index = path
    holder = _at(tree, tuple(parents))
    return _with(tree, tuple(parents), type(holder)(holder[:index] + holder[index + 1 :]))


def _like(draw: DrawFn, value: Any) -> Any:
    """Another value of the same type: what a decoder that checks types takes."""
    if isinstance(value, bool) or value is None:
        return JsonText(draw(_WORDS))
    if isinstance(value, int | float):
        return JsonText(_number(draw))
    if isinstance(value, str) and not isinstance(value, JsonText):
        body, form = json.dumps(value)[1:-1], draw(_OF_4)
        if form == 0 or (value[:1].isdigit() and draw(_BITS)):
            return JsonText(f'"{_numeric_text(draw)}"')
        if form == 1:
            return JsonText(f'"{body}{_text_body(draw)}"')
        if form == 2:
            return JsonText(f'"{_text_body(draw)}{body}"')
        return JsonText(_string(draw))
    return JsonText(_value(draw))


def _mutated(draw: DrawFn, tree: Any) -> Any:
    """The tree with one change at one place."""
    places = list(_places(tree))
    path = places[draw(st.integers(0, len(places) - 1))]
    value = _at(tree, path)
    kind = draw(_OF_10)
    if kind <= 3:
        return _with(tree, path, _like(draw, value))
    if kind <= 5 or not path:
        return _with(tree, path, JsonText(_value(draw)))
    if kind == 6:
        return _with(tree, path, JsonText(_nested(draw, render(value))))
    if kind == 7:
        return _without(tree, path)
    *parents, index = path
    holder = _at(tree, tuple(parents))
    if kind == 8:  # again and again
        item = render(value)
        name = f"{render(holder[index][0])}:" if isinstance(holder, Members) else ""
        times = _size(draw, min(MAX_LENGTH, MAX_BYTES // (len(item) + len(name) + 1)))
        again = JsonText(item + f",{name}{item}" * times)
        return _with(tree, path, again)
    if isinstance(holder, Members):
        renamed = Members(holder)
        renamed[index] = (JsonText(_string(draw)), value)
        return _with(tree, tuple(parents), renamed)
    return _with(tree, path, JsonText(_scalar(draw)))


@st.composite
def damaged(draw: DrawFn, data: bytes) -> bytes:
    """Bytes that are changed, cut off, left out, repeated or inserted."""
    source = draw(_GENERATORS)
    changed = bytearray(data)
    for _ in range(round(8 ** source.random())):
        start = source.randrange(len(changed) + 1)
        end = min(len(changed), start + round(64 ** source.random()))
        kind = source.randrange(5)
        if kind == 0:
            for index in range(start, end):
                changed[index] ^= 1 << source.randrange(8)
        elif kind == 1:
            del changed[start:]
        elif kind == 2:
            del changed[start:end]
        elif kind == 3:
            changed[start:start] = bytes(changed[start:end]) * round(2000 ** source.random())
        else:
            changed[start:start] = source.randbytes(round(64 ** source.random()))
        del changed[4 << 20 :]
    return bytes(changed)


@st.composite
def mutations(draw: DrawFn, corpus: Sequence[Any]) -> bytes:
    """A valid document with one to three changes; now and then damaged, or of another form.

    Args:
        draw: Hypothesis's.
        corpus: Valid documents, as parsed.
    """
    form = draw(_OF_20)
    if form == 0:
        source = draw(_GENERATORS)
        return source.randbytes(draw(sizes(4000)))
    if form == 1:
        return encode(_value(draw))
    tree = as_tree(corpus[draw(st.integers(0, len(corpus) - 1))])
    for _ in range(max(1, draw(_OF_4))):
        tree = _mutated(draw, tree)
    data = encode(render(tree))
    return draw(damaged(data)) if form <= 4 else data


@st.composite
def damaged_bytes(draw: DrawFn, corpus: Sequence[bytes]) -> bytes:
    """A valid input that is damaged, or bytes that were never one."""
    if draw(_OF_20) == 0:
        return draw(_GENERATORS).randbytes(draw(sizes(8000)))
    return draw(damaged(corpus[draw(st.integers(0, len(corpus) - 1))]))


@st.composite
def names(draw: DrawFn) -> bytes:
    """Bytes for a name or another text that is not quoted; without zero bytes."""
    kind = draw(_OF_4)
    if kind <= 1:
        found = draw(_GENERATORS).randbytes(draw(sizes(200)))
    elif kind == 2:
        found = encode(json.loads(f'"{_text_body(draw)}"', strict=False))
    else:
        found = _numeric_text(draw).encode()
    return found.replace(b"\0", b"") or b"x"


@st.composite
def yaml_texts(draw: DrawFn, corpus: Sequence[Any]) -> bytes:
    """YAML: what JSON is, too, and lines with anchors, aliases, tags, merges and blocks."""
    if draw(st.booleans()):
        return draw(mutations(corpus))
    source = draw(_GENERATORS)
    anchors = ["a0"]
    lines = ["a0: &a0 [1, x]"]
    names_of = [str(name) for each in corpus for name in each]
    for number in range(1, draw(sizes(60))):
        name = source.choice((f"a{number}", source.choice(names_of)))
        known = source.choice(anchors)
        item = source.choice((f"*{known}", f"*{known}", "1", "~", "1:2", "2001-01-01", "!!int x"))
        form = source.randrange(6)
        anchor = f"a{number}"
        if form <= 1:
            items = ", ".join([item] * source.randrange(1, 12))
            lines.append(f"{name}: &{anchor} [{items}]")
        elif form == 2:
            lines.append(f"{name}: &{anchor} {{x: {item}, <<: {{y: *{known}}}}}")
        elif form == 3:
            lines.append(f"{name}: &{anchor} {_scalar(draw)}")
        elif form == 4:
            indent = " " * source.randrange(1, 5)
            lines.append(f"{name}: &{anchor} |\n{indent}{source.choice(_PLAIN)}")
        else:
            lines.append(
                f"{name}: &{anchor} !!{source.choice(('str', 'float', 'set', 'binary'))} {item}"
            )
        anchors.append(anchor)
    return encode("\n".join(lines))
