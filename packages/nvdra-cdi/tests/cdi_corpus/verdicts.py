# SPDX-License-Identifier: Apache-2.0
"""What either side says of a document, in the same words: valid, or the first rule it breaks.

The words are the names of rules in `table`; all version rules are "version", what does not even
decode is "decode", and what the reference crashes on is "crash".
"""

import re
from dataclasses import dataclass
from typing import Any

from nvdra_cdi import codec, validation, version
from nvdra_cdi.errors import CodecError, Problem
from nvdra_cdi.model import Spec

VALID = "valid"
_THEIRS = tuple(
    (re.compile(pattern, re.DOTALL), rule)
    for pattern, rule in (
        (r"unmarshal|no Spec data|yaml: |EOF", "decode"),
        (r"invalid version |must be at least", "version"),
        (r"invalid vendor\.", "vendor"),
        (r"invalid class\.", "class"),
        (r"invalid hook name", "hook name"),
        (r"invalid hook .*empty path", "hook path"),
        (r"invalid hook .*environment variable", "hook env"),
        (r"invalid environment variable", "env"),
        (r"\(empty\) device path", "device node path"),
        (r"device .*: invalid type", "device node type"),
        (r"device .*: invalid permissions", "device node permissions"),
        (r"empty host path", "mount hostPath"),
        (r"empty container path", "mount containerPath"),
        (r"invalid ClosID", "closID"),
        (r"empty (HostInterfaceName|Name)", "net device names"),
        (r"duplicate HostInterfaceName", "net device hosts unique"),
        (r"duplicate Name", "net device names unique"),
        (r"empty device edits", "device edits"),
        (r"multiple device", "device name unique"),
        (r"no devices", "a device"),
        (r"\(empty\) device name|in device name|should (start|end) with", "device name"),
    )
)
_OURS = tuple(
    (re.compile(pattern, re.DOTALL), rule)
    for pattern, rule in (
        (r"cdiVersion: ", "version"),
        (r"kind: (empty )?vendor", "vendor"),
        (r"kind: (empty )?class", "class"),
        (r"hooks\[\d+\]\.hookName: ", "hook name"),
        (r"hooks\[\d+\]\.path: ", "hook path"),
        (r"hooks\[\d+\]\.env\[\d+\]: ", "hook env"),
        (r"env\[\d+\]: ", "env"),
        (r"deviceNodes\[\d+\]\.path: ", "device node path"),
        (r"deviceNodes\[\d+\]\.type: ", "device node type"),
        (r"deviceNodes\[\d+\]\.permissions: ", "device node permissions"),
        (r"mounts\[\d+\]\.hostPath: ", "mount hostPath"),
        (r"mounts\[\d+\]\.containerPath: ", "mount containerPath"),
        (r"intelRdt\.closID: ", "closID"),
        (r"netDevices\[\d+\]\.\w+: is empty", "net device names"),
        (r"netDevices\[\d+\]\.hostInterfaceName: .*twice", "net device hosts unique"),
        (r"netDevices\[\d+\]\.name: .*twice", "net device names unique"),
        (r"devices\[\d+\]\.containerEdits: ", "device edits"),
        (r"devices\[\d+\]\.name: another device", "device name unique"),
        (r"devices\[\d+\]\.name: ", "device name"),
        (r"devices: ", "a device"),
    )
)


@dataclass(frozen=True)
class Reading:
    """What one side makes of a document.

    Attributes:
        verdict: `VALID`, or the first rule it breaks.
        minimum: The version it needs; empty where it does not decode.
        message: The error in full, for people.
    """

    verdict: str
    minimum: str
    message: str = ""


def of_rule(name: str) -> str:
    """The verdict that a document gets which breaks only that rule."""
    if name.startswith(("version ", "at least")):
        return "version"
    return {"closID length": "closID", "closID name": "closID", "null entry": "decode"}.get(
        name, name
    )


def ours(document: bytes) -> tuple[Reading, Spec | None]:
    """Our reading, and the document if it decodes."""
    try:
        spec = codec.loads(document)
    except CodecError as error:
        return Reading("decode", "", str(error)), None
    minimum = version.minimum_required(spec)
    broken = [problem for problem in validation.problems(spec) if not problem.is_warning]
    if not broken:
        return Reading(VALID, minimum), spec
    return Reading(_rule_of(broken[0]), minimum, str(broken[0])), spec


def theirs(answer: dict[str, Any]) -> Reading:
    """The reference library's reading, from what the oracle answers."""
    message = answer.get("error", "")
    if answer.get("panic"):
        return Reading("crash", answer.get("minimum", ""), message)
    rule = _first(_THEIRS, message) if message else VALID
    return Reading(rule, answer.get("minimum", ""), message)


def _rule_of(problem: Problem) -> str:
    return _first(_OURS, f"{problem.path}: {problem.message}")


def _first(table: tuple[tuple[re.Pattern[str], str], ...], message: str) -> str:
    for pattern, rule in table:
        if pattern.search(message):
            return rule
    raise AssertionError(f"no rule is known for: {message}")
