# SPDX-License-Identifier: Apache-2.0
"""Opaque configs of which many are wrong, made from a seed, for admission and prepare.

A config is a valid one of its kind, changed in none to three places. It is JSON text, because some
mistakes, such as a field that is there twice, are lost in a parsed document.
"""

import copy
import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from nvdra_api.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER, NVIDIA_API_VERSION

SEED: Final = 20260901
SIZE: Final = 1000

DOMAIN_UID: Final = "6a1f6a34-38c9-4d2e-9f5c-0f3f2b7c9d10"

Value = Any
"""A JSON value, in which objects that can be changed are `Pairs`."""
Pairs = list[tuple[str, Value]]
"""An object, in which a name may occur twice."""


@dataclass(frozen=True, slots=True)
class CorpusConfig:
    """One config of the corpus.

    Attributes:
        driver: The driver that it is for.
        parameters: JSON text.
    """

    driver: str
    parameters: str


def make(size: int = SIZE, seed: int = SEED) -> tuple[CorpusConfig, ...]:
    """Make a corpus of this many different configs. The same seed makes the same one."""
    draw = random.Random(seed)
    made: dict[CorpusConfig, None] = {}
    while len(made) < size:
        made[_config(draw)] = None
    return tuple(made)


def _config(draw: random.Random) -> CorpusConfig:
    kind = draw.choice(("Gpu", "Gpu", "Gpu", "Mig", "Vfio", "Channel", "Daemon"))
    body = _BODIES[kind](draw)
    name = {"Channel": "ComputeDomainChannel", "Daemon": "ComputeDomainDaemon", "Mig": "MigDevice"}
    document: Pairs = [
        ("apiVersion", NVIDIA_API_VERSION),
        ("kind", f"{name.get(kind, 'VfioDevice' if kind == 'Vfio' else kind)}Config"),
        *body,
    ]
    for _ in range(draw.choice((0, 0, 0, 0, 1, 1, 1, 2, 3))):
        draw.choice(_MUTATIONS)(draw, document)
    is_domains = kind in ("Channel", "Daemon")
    if draw.random() < 0.03:
        is_domains = not is_domains
    text = _text(document)
    if draw.random() < 0.02:
        text = draw.choice(('"a string"', "null", "[]", "7", "{}"))
    return CorpusConfig(COMPUTE_DOMAIN_DRIVER if is_domains else GPU_DRIVER, text)


def _gpu(draw: random.Random) -> Pairs:
    strategy = draw.choice(("", "TimeSlicing", "TimeSlicing", "MPS", "MPS"))
    if not strategy:
        return [("sharing", None)] if draw.random() < 0.3 else []
    sharing: Pairs = [("strategy", strategy)]
    if strategy == "TimeSlicing" and draw.random() < 0.8:
        interval = draw.choice(("Default", "Short", "Medium", "Long", None))
        sharing.append(("timeSlicingConfig", [("interval", interval)]))
    if strategy == "MPS" and draw.random() < 0.8:
        sharing.append(("mpsConfig", _mps(draw)))
    return [("sharing", sharing)]


def _mig(draw: random.Random) -> Pairs:
    strategy = draw.choice(("", "TimeSlicing", "MPS", "MPS"))
    if not strategy:
        return []
    sharing: Pairs = [("strategy", strategy)]
    if strategy == "MPS" and draw.random() < 0.8:
        sharing.append(("mpsConfig", _mps(draw)))
    return [("sharing", sharing)]


def _mps(draw: random.Random) -> Pairs:
    fields: Pairs = [
        ("defaultActiveThreadPercentage", draw.randint(0, 100)),
        ("defaultPinnedDeviceMemoryLimit", draw.choice((f"{draw.randint(1, 80)}Gi", 1048576))),
        ("defaultPerDevicePinnedMemoryLimit", [("0", f"{draw.randint(2, 80000)}Mi")]),
        ("multiUser", draw.choice((True, False))),
    ]
    return [each for each in fields if draw.random() < 0.5]


def _vfio(draw: random.Random) -> Pairs:
    if draw.random() < 0.4:
        return []
    policy = draw.choice(("LegacyOnly", "PreferIommuFD"))
    return [("iommu", [("backendPolicy", policy), ("enableAPIDevice", draw.random() < 0.5)])]


def _channel(draw: random.Random) -> Pairs:
    mode = draw.choice(("", "Single", "All"))
    return [("domainID", _uid(draw)), *([("allocationMode", mode)] if mode else [])]


def _daemon(draw: random.Random) -> Pairs:
    return [("domainID", _uid(draw))]


def _uid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


_BODIES: Final[dict[str, Callable[[random.Random], Pairs]]] = {
    "Gpu": _gpu,
    "Mig": _mig,
    "Vfio": _vfio,
    "Channel": _channel,
    "Daemon": _daemon,
}

_VALUES: Final[dict[str, tuple[Value, ...]]] = {
    "strategy": ("", "Foo", "timeslicing", "MPS", "TimeSlicing", 3, None, True),
    "interval": ("", "Invalid Interval", "long", "Long", 5, None, {}),
    "timeSlicingConfig": (None, {}, "Long", []),
    "defaultActiveThreadPercentage": (-1, 101, 100, 0, 50.5, "50", True, None, 10**30),
    "defaultPinnedDeviceMemoryLimit": (
        *("abc", "10K", "1M", "-5Gi", "1048575", "1Mi", "1.9Mi", "0", 0, 5, None, True, {}),
        *("10 Gi", "99999999999999999999", "1e9", "100m", "10Ei", ""),
    ),
    "defaultPerDevicePinnedMemoryLimit": (
        *({"0": None}, {"00": "1Gi"}, {"-1": "1Gi"}, {"+0": "1Gi"}, {"nope": "1Ki"}, {"0": "1Ki"}),
        *({"0": "1Gi"}, {}, None, [], "1Gi", {"": "1Gi"}, {" 0": "1Gi"}, {"0x0": "1Gi"}),
    ),
    "multiUser": ("true", 1, None, False),
    "mpsConfig": (None, {}, "x", [1]),
    "sharing": (None, {}, "MPS", []),
    "backendPolicy": ("", "Legacy", "legacyonly", None, 1),
    "enableAPIDevice": ("true", None, 0),
    "iommu": (None, {}, "x"),
    "domainID": ("", None, "not-needed-for-test", "../x", DOMAIN_UID.upper(), 7, {}),
    "allocationMode": ("", "Some", "all", None, 7),
    "kind": ("Nope", "gpuconfig", "", None, 7, "ComputeDomain", "MigDeviceConfig", "GpuConfig"),
    "apiVersion": ("v1", "resource.nvidia.com/v1", "a/b/c", "", None, 1),
}
_ADDED: Final[Pairs] = [
    ("unexpectedField", True),
    ("metadata", {"name": "x"}),
    ("Sharing", {}),
    ("timeSlicingConfig", [("interval", "Short")]),
    ("mpsConfig", [("defaultActiveThreadPercentage", 10)]),
    ("sharing", [("strategy", "MPS")]),
    ("domainID", DOMAIN_UID),
    ("numéro", 1),
]


def _objects(value: Value, found: list[Pairs] | None = None) -> list[Pairs]:
    """Every object of a document that can be changed."""
    found = [] if found is None else found
    if _is_object(value):
        pairs: Pairs = value
        found.append(pairs)
        for _, each in pairs:
            _objects(each, found)
    return found


def _change_value(draw: random.Random, document: Pairs) -> None:
    pairs = draw.choice(_objects(document))
    known = [index for index, (name, _) in enumerate(pairs) if name in _VALUES]
    if known:
        index = draw.choice(known)
        name = pairs[index][0]
        pairs[index] = (name, copy.deepcopy(draw.choice(_VALUES[name])))


def _rename(draw: random.Random, document: Pairs) -> None:
    pairs = draw.choice(_objects(document))
    if pairs:
        index = draw.randrange(len(pairs))
        name, value = pairs[index]
        wrong = (name.upper(), name[:-1], f"{name} ", name.swapcase())
        pairs[index] = (draw.choice(wrong), value)


def _duplicate(draw: random.Random, document: Pairs) -> None:
    pairs = draw.choice(_objects(document))
    if pairs:
        pairs.insert(draw.randrange(len(pairs) + 1), copy.deepcopy(draw.choice(pairs)))


def _drop(draw: random.Random, document: Pairs) -> None:
    pairs = draw.choice(_objects(document))
    if pairs:
        pairs.pop(draw.randrange(len(pairs)))


def _add(draw: random.Random, document: Pairs) -> None:
    draw.choice(_objects(document)).append(copy.deepcopy(draw.choice(_ADDED)))


_MUTATIONS: Final = (_change_value, _change_value, _change_value, _rename, _duplicate, _drop, _add)


def _is_object(value: Value) -> bool:
    return isinstance(value, list) and all(isinstance(each, tuple) for each in value)


def _text(value: Value) -> str:
    if isinstance(value, list) and _is_object(value):
        fields = (f"{json.dumps(name)}:{_text(each)}" for name, each in value)
        return f"{{{','.join(fields)}}}"
    return json.dumps(value, separators=(",", ":"))
