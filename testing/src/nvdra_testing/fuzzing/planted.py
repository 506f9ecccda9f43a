# SPDX-License-Identifier: Apache-2.0
"""Functions with known faults, by which the fuzzer itself is tested.

Each has one of the faults for which decoders are known. No strategy knows them.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

VALID: Final = {"kind": "Planted", "limit": "10Gi", "names": ["a", "b"], "inner": {"count": 3}}


def computes_what_a_text_says(case: bytes) -> None:
    """An exponent decides for how long it computes."""
    with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):
        limit = str(json.loads(case).get("limit"))
        _, _, exponent = limit.partition("e")
        10 ** min(int(exponent), 10**8)


def recurses(case: bytes) -> None:
    """Depth decides whether it returns."""
    with contextlib.suppress(ValueError):
        json.loads(case)


def encodes_what_it_has_read(case: bytes) -> None:
    """A text that it decodes cannot always be encoded."""
    with contextlib.suppress(ValueError, RecursionError):
        value = _parsed(case)
        if isinstance(value, dict):
            _encode(value.get("kind"))


def _parsed(case: bytes) -> Any:
    return json.loads(case)


def _encode(value: Any) -> None:
    try:
        str(value).encode()
    except UnicodeEncodeError as error:
        raise LookupError("no such text") from error


def keeps_what_it_is_given(case: bytes) -> None:
    """It needs more and more memory with what is repeated."""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(case)
        if isinstance(value, dict) and isinstance(value.get("names"), list):
            "x" * (min(len(value["names"]), 512) * (1 << 20))


def ends(case: bytes) -> None:
    """It ends the process, some time after its answer."""
    if case.count(b"[") > 2:
        threading.Timer(0.05, os._exit, (3,)).start()


def waits(case: bytes) -> None:
    """It answers late, and needs no processor time for that: the clock tells nothing."""
    time.sleep(0.01 * (case.count(b"a") % 3))


FAULTY: Final[tuple[Callable[[bytes], None], ...]] = (
    computes_what_a_text_says,
    recurses,
    encodes_what_it_has_read,
    keeps_what_it_is_given,
    ends,
)
