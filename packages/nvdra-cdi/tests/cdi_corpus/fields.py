# SPDX-License-Identifier: Apache-2.0
"""Documents for each field of docs/reference/cdi.md §1: values it may have, in every notation, and
others.

What is wrong with a broken one is the field itself: its type, its spelling, its number, or that it
is not there. Rules about values are in `rules`.
"""

import random
from collections.abc import Iterator
from typing import Any

from cdi_corpus import documents
from cdi_corpus.documents import Case, Tree
from cdi_corpus.table import FIELDS, Field, Type
from cdi_corpus.text import Raw, Twice

_TEXTS = (
    *map(Raw, ("plain", "0", "1.5", "yes", "0x10", "2001-01-01", "12:30:45", "'single'", "a-b")),
    *map(Raw, ('"double\\u00fc"', '""', "''", "&anchor text", "!!str 5", ".inf", "=", "<<", "NO")),
)
_COLLECTIONS = tuple(map(Raw, ("[]", "[1]", "{}", "{a: 1}")))
_NO_NUMBERS: tuple[Any, ...] = ("5", "", "x", Raw("'7'"), Raw("yes"), Raw("true"), *_COLLECTIONS)
_FRACTIONS = tuple(map(Raw, ("1.5", "1e3", "08", ".5", "1_000", "0b11", ".inf", ".nan")))

_VALUES: dict[Type, tuple[Any, ...]] = {
    "text": _TEXTS,
    "texts": ([], ["x"], ["x", "y", "x"], [Raw("0"), Raw("yes")], ["", "ü"], Raw("[a, 1.5]")),
    "int64": (
        *(0, 1, 60),
        *map(Raw, ("0644", "0o17", "0x1f", "-0", "+7", "00", "0X1F", "!!int 7", "-0x10", "-07")),
        *map(Raw, ("9223372036854775807", "-9223372036854775808")),
    ),
    "uint32": (
        *(0, 1, 438),
        *map(Raw, ("0666", "0o666", "0x1b6", "+1", "-0", "00", "!!int 44", "4294967295")),
        Raw("0xFFFFFFFF"),
    ),
    "uint32s": ([], [0], [44], [1, 2, 1], [Raw("0x2c"), Raw("054")], Raw("[4294967295, 0o7]")),
    "flag": (
        *(True, False),
        *map(Raw, ("yes", "no", "on", "off", "y", "n", "Yes", "OFF", "Y", "N", "TRUE", "False")),
    ),
    "text map": (
        *({}, {"a": "b"}, {"a": Raw("1"), "b.c/d": Raw("yes")}, {"k": Raw("~")}),
        Raw("{1: 2}"),
    ),
}
_WRONG: dict[Type, tuple[Any, ...]] = {
    "text": tuple(map(Raw, ("[]", "[a]", "{}", "{a: b}", "[[]]"))),
    "texts": ("x", 5, {}, {"a": "b"}, [[]], [["x"]], [{}], Raw('""'), True, [{"a": "b"}]),
    "int64": (
        *_NO_NUMBERS,
        *map(Raw, ("0o8", "0xg", "1 2", "--1", "2001-01-01", "9223372036854775808")),
        Raw("-9223372036854775809"),
        *_FRACTIONS,
    ),
    "uint32": (
        *_NO_NUMBERS,
        *map(Raw, ("-1", "0o9", "-0x1", "4294967296", "18446744073709551616")),
        *_FRACTIONS,
    ),
    "uint32s": (5, "x", {}, [-1], ["44"], [[]], [{}], [4294967296], ["x"], [True], [Raw("1.5")]),
    "flag": (
        *(0, 1, "true", "x", *_COLLECTIONS),
        *map(Raw, ("t", "enabled", "1.0", "'false'", "''", "yep", "oN", '"yes"', "'n'")),
    ),
    "text map": ([], ["a"], "x", 5, True, {"a": []}, {"a": {}}, {"a": ["b"]}, Raw("{a: {b: c}}")),
    "object": ([], ["x"], "x", 5, True, [{}], {"unknown": 1}, {"Env": []}, Raw("{a}"), Raw("''")),
    "objects": ({}, {"a": {}}, "x", 5, ["x"], [[]], [5], [True], [{"unknown": 1}], Raw("''")),
}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "Spec.cdiVersion": (
        "1.1.0",
        "v1.1.0",
        Raw("1.1.0"),
        Raw("'1.1.0'"),
        Raw("!!str 1.1.0"),
        Raw("v1.1.0"),
        "1.0.0",
        "0.3.0",
    ),
    "Spec.kind": (
        "a/b",
        Raw("v.com/c"),
        Raw("'v/c'"),
        Raw("no/yes"),
        Raw("e1/e2"),
        "nvidia.com/gpu",
    ),
    "Device.name": (
        "a",
        Raw("0"),
        Raw("yes"),
        Raw("1.5"),
        Raw("0x1f"),
        Raw("0:1"),
        Raw("'0'"),
        Raw("null0"),
        Raw("1e3"),
    ),
    "DeviceNode.type": ("b", Raw("c"), Raw("'u'"), Raw('"p"'), Raw('""')),
    "DeviceNode.permissions": (Raw("r"), Raw("'rw'"), Raw("none"), Raw('"rwm"'), Raw('""'), "m"),
    "Hook.hookName": (*documents.HOOKS, Raw("'prestart'"), Raw("poststop")),
    "Hook.env": ([], ["A=b"], ["A=", "B=c"], [Raw("A=1")], Raw("[a=b, 1=2]"), ["ü=ü"]),
    "ContainerEdits.env": ([], ["A=b"], ["A=", "B=c"], [Raw("A=1")], Raw("[a=b, 1=2]"), ["ü=ü"]),
}


def cases(seed: str, each: int) -> Iterator[Case]:
    """For every field that many documents with a right value and that many with a wrong one."""
    for place, field in enumerate(FIELDS):  # where the place decides with which value one begins
        for index in range(each):
            for make in (_right, _wrong):
                rng = random.Random(f"{seed}/{field.name}/{make.__name__}/{index}")
                yield Case(field.name, make is _right, make(rng, field, index, place))


def _right(rng: random.Random, field: Field, index: int, place: int) -> Tree:
    tree = documents.plain(rng, field.versions)
    target = documents.any_object(rng, tree, field.owner)
    values = _right_values(rng, field)
    if not field.is_required and index % 7 == 6:
        target.pop(field.key, None)
    elif not field.is_required and index % 7 == 5:
        target[field.key] = rng.choice((None, Raw("~"), Raw("Null"), Raw("NULL")))
    else:
        target[field.key] = values[(place + index) % len(values)]
    return _mended(rng, tree, target, field)


def _mended(rng: random.Random, tree: Tree, target: Tree, field: Field) -> Tree:
    """Repair what the new value has broken elsewhere in the document."""
    if field.owner == "ContainerEdits":  # it may have been the only edit of a device
        for device in tree["devices"]:
            other = "env" if field.key == "hooks" else "hooks"
            documents.present(device["containerEdits"], other, [])
            device["containerEdits"][other] += [documents.hook(rng) if other == "hooks" else "A=b"]
    if field.name == "Device.name":  # another device may have it, or it begins with a digit
        tree["devices"] = [target]
        tree["cdiVersion"] = "1.1.0"
    return tree


def _right_values(rng: random.Random, field: Field) -> tuple[Any, ...]:
    if field.name in _CHOICES:
        return _CHOICES[field.name]
    if field.type == "text" and field.is_required:
        return tuple(value for value in _TEXTS if value.source not in ('""', "''"))
    if field.type == "object":
        return _objects(rng, field)
    if field.type == "objects":
        owner = {
            "deviceNodes": "DeviceNode",
            "netDevices": "NetDevice",
            "hooks": "Hook",
            "mounts": "Mount",
        }
        if field.key == "devices":
            return tuple(_devices(rng, count) for count in (1, 2, 4))
        make = documents.MAKERS[owner[field.key]]
        return tuple([make(rng) for _ in range(count)] for count in (0, 1, 2, 3))
    return _VALUES[field.type]


def _devices(rng: random.Random, count: int) -> list[Tree]:
    return [{"name": f"d{index}", "containerEdits": documents.edits(rng)} for index in range(count)]


def _objects(rng: random.Random, field: Field) -> tuple[Any, ...]:
    if field.key == "intelRdt":
        return (
            {},
            {"closID": "x"},
            {"l3CacheSchema": "L3:0=f"},
            {"memBwSchema": "MB:0=20"},
            Raw("{}"),
        )
    full = tuple(documents.edits(rng) for _ in range(4))
    return full if field.is_required else ({}, *full, {"env": None})


def _wrong(rng: random.Random, field: Field, index: int, place: int) -> Tree:
    versions = ("1.1.0",) if field.since == "1.1.0" else field.versions
    tree = documents.plain(rng, versions)
    target = documents.any_object(rng, tree, field.owner)
    right, wrong = _right_values(rng, field), _WRONG[field.type]
    chosen = index % 6
    if chosen == 0:
        target[field.key] = Twice(target.get(field.key, right[0]), right[0])
    elif chosen == 1:
        target.pop(field.key, None)
        target[rng.choice(_misspelt(field.key))] = right[-1]
    elif chosen == 2 and field.is_required:
        target.pop(field.key)
        if rng.random() < 0.5:
            target[field.key] = None
    elif chosen == 2 and field.until != "1.1.0":
        target[field.key] = rng.choice((True, False, None))
        tree["cdiVersion"] = "1.1.0"
    else:
        target[field.key] = wrong[(place * 5 + index) % len(wrong)]
    return tree


def _misspelt(key: str) -> list[str]:
    candidates = (key.upper(), key.title(), key.lower(), f"{key} ", f"{key}s", f"x-{key}")
    return [each for each in candidates if each != key]
