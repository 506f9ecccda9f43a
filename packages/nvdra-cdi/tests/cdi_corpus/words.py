# SPDX-License-Identifier: Apache-2.0
"""Names, and annotations, on and beside their rules (docs/reference/cdi.md §§3 and 9)."""

import random
from collections.abc import Iterator
from typing import Any

_PARTS = (
    "",
    "a",
    "Z",
    "0",
    "9",
    "nvidia.com",
    "gpu",
    "-",
    "_",
    ".",
    ":",
    "ü",
    "٣",
    "🙂",
    " ",
    "a-b",
    "a\n",
    "\0",
    "x" * 70,
)
_SEPARATORS = ("", "/", "=", "/", "=", "//", "==", "/=", "=/")
_VECTORS = (
    "nvidia.com/gpu=0",
    "k8s.gpu.nvidia.com/claim=5f0b-gpu-0",
    "v/c=d",
    "vendor.com/class=a=b",
    "vendor.com/a/b=c",
    "/dev/nvidia0",
    "vendor.com=x",
    "vendor.com/=x",
    "=x",
    "vendor.com/c=",
    "1vendor/c=d",
    "vendor-/c=d",
    "vendor/c=0:1",
    "vendor/c=a:",
)
_GOOD_NAMES = ("nvidia.com/gpu=0", "v/c=d", "vendor/c=0:1")
_BAD_NAMES = ("", "x", "/dev/nvidia0", "v/c=a:", "v/c=a ", " v/c=a")
_PLUGINS = ("vendor.class", "a", "0", "v-1_x", "", "-a", "ü", "a b", "x" * 40, "Vendor.Class")
_IDS = ("0", "gpu/0", "a/b/c", "", "a-", "/", "x" * 30, "x" * 22, "x" * 23, "ü", "_", "GPU-1.2")


def names(seed: str, count: int) -> Iterator[str]:
    """Those of docs/reference/cdi.md §22, and as many more of parts and separators in any order."""
    yield from _VECTORS
    rng = random.Random(f"{seed}/names")
    for _ in range(count):
        pieces = [rng.choice(_PARTS)]
        for _ in range(rng.randint(0, 3)):
            pieces += [rng.choice(_SEPARATORS), rng.choice(_PARTS)]
        yield "".join(pieces)


def updates(seed: str, count: int) -> Iterator[dict[str, Any]]:
    """Requests to annotate: what is there, plugin, device id and device names."""
    rng = random.Random(f"{seed}/updates")
    for _ in range(count):
        devices = [_name(rng, 0.95) for _ in range(rng.randint(0, 3))]
        plugin, device_id = rng.choice(_PLUGINS), rng.choice(_IDS)
        there = {"other": "x"}
        if rng.random() < 0.2:
            there[f"cdi.k8s.io/{plugin}_{device_id.replace('/', '_')}"] = "v/c=d"
        yield {"annotations": there, "plugin": plugin, "deviceID": device_id, "devices": devices}


def annotations(seed: str, count: int) -> Iterator[dict[str, str]]:
    """Annotations of a container, of ours and of others."""
    rng = random.Random(f"{seed}/annotations")
    keys = (
        "cdi.k8s.io/a_0",
        "cdi.k8s.io/",
        "cdi.k8s.io/b",
        "cdi.k8s.io",
        "x.cdi.k8s.io/a",
        "CDI.k8s.io/a",
    )
    for _ in range(count):
        chosen = rng.sample(keys, rng.randint(0, 4))
        yield {
            key: rng.choice((",", ",", ",", ", ")).join(
                _name(rng, 0.9) for _ in range(rng.randint(1, 3))
            )
            for key in chosen
        }


def _name(rng: random.Random, good: float) -> str:
    return rng.choice(_GOOD_NAMES if rng.random() < good else _BAD_NAMES)
