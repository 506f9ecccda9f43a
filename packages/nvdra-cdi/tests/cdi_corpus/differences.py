# SPDX-License-Identifier: Apache-2.0
"""Where nvdra-cdi differs from the reference library on purpose. Everything else must be equal.

A difference that a test meets has to be one of these; one of these that no test meets fails too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from yaml.nodes import Node

from cdi_corpus import nodes
from cdi_corpus.verdicts import Reading

About = Literal["reading", "writing", "cache", "annotations"]


@dataclass(frozen=True)
class Seen:
    """A document on which the two sides do not agree.

    Attributes:
        document: Its bytes.
        root: What it says, as a node tree; absent where it is no YAML.
        ours: Our reading.
        theirs: The reference library's.
    """

    document: bytes
    root: Node | None
    ours: Reading
    theirs: Reading

    @property
    def only_they_read(self) -> bool:
        """Whether only we refuse to decode it."""
        return self.ours.verdict == "decode" != self.theirs.verdict


@dataclass(frozen=True)
class Difference:
    """One intended difference.

    Attributes:
        name: In tests and in the report.
        about: What is compared.
        reference: What the reference library 1.1.1 does.
        ours: What we do.
        reason: Why.
        explains: Whether this is what is seen: takes a `Seen` for reading, a problem's text for
            writing, and for the rest what the test says in words.
    """

    name: str
    about: About
    reference: str
    ours: str
    reason: str
    explains: Callable[[Any], bool]


_NUMBERS = frozenset(("major", "minor", "fileMode", "uid", "gid", "timeout", "additionalGids"))
_WHOLE = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0|[1-9][0-9]*)", re.ASCII)
_BELOW_INT64 = re.compile(r"-[0-9]{19,}")  # which then counts as a fraction
_FLAGS = frozenset(("enableMonitoring", "enableCMT", "enableMBM"))
_YES_OR_NO = re.compile(r"y|yes|on|n|no|off", re.IGNORECASE)


def _ended_fields(seen: Seen) -> bool:
    ended = any(key in ("enableCMT", "enableMBM") for key, _ in nodes.scalars(seen.root))
    return ended and seen.theirs.verdict == "decode" != seen.ours.verdict


def _null_entries(seen: Seen) -> bool:
    return seen.only_they_read and nodes.has_null_entry(seen.root)


def _other_numbers(seen: Seen) -> bool:
    numbers = (node for key, node in nodes.scalars(seen.root) if key in _NUMBERS and not node.style)
    return seen.only_they_read and any(
        not _WHOLE.fullmatch(node.value) or _BELOW_INT64.fullmatch(node.value) for node in numbers
    )


def _quoted_words(seen: Seen) -> bool:
    words = (node for key, node in nodes.scalars(seen.root) if key in _FLAGS and node.style)
    return seen.only_they_read and any(_YES_OR_NO.fullmatch(node.value) for node in words)


def _only_the_last_device(seen: Seen) -> bool:
    earlier = [item for device in nodes.devices(seen.root)[:-1] for item in nodes.scalars(device)]
    needs = any(node.value and key in ("hostPath", "type") for key, node in earlier)
    return needs and seen.theirs.minimum < seen.ours.minimum <= "0.5.0"


def _tags(seen: Seen) -> bool:
    return re.search(rb"(^|\s)!", seen.document) is not None


def _unknown_to_their_parser(seen: Seen) -> bool:
    found = re.search(rb"^%YAML 1\.2|\\/", seen.document) is not None
    return found and seen.theirs.verdict == "decode" != seen.ours.verdict


def _null_keys(seen: Seen) -> bool:
    return seen.only_they_read and nodes.has_null_key(seen.root)


def _limits(seen: Seen) -> bool:
    return (
        seen.only_they_read
        and re.search(r"exceeds|expanded|levels deep|more than", seen.ours.message) is not None
    )


def _extra(pattern: str) -> Callable[[str], bool]:
    return lambda problem: re.search(pattern, problem, re.DOTALL) is not None


@dataclass(frozen=True)
class Resolved:
    """A name that only we resolve.

    Attributes:
        definitions: How many files define it in each directory, the lowest first.
        used: The place in that list of the directory whose definition we take.
    """

    definitions: tuple[int, ...]
    used: int


def _is_above_a_conflict(resolved: Resolved) -> bool:
    below, above = resolved.definitions[: resolved.used], resolved.definitions[resolved.used + 1 :]
    is_alone = resolved.definitions[resolved.used] == 1
    return is_alone and max(below, default=0) > 1 and not any(above)


READING = (
    Difference(
        "fields that ended with 1.0.0",
        "reading",
        "refuses `enableCMT` and `enableMBM` in every document",
        "takes them in documents of 0.7.0 to 1.0.0, and keeps them",
        "they were valid when the document was written; §1.8",
        _ended_fields,
    ),
    Difference(
        "null entries of lists",
        "reading",
        "drops null from lists of texts, numbers and devices, and crashes on null nodes, hooks, "
        "mounts and net devices",
        "refuses the document",
        "nobody means an entry that is not there; §4",
        _null_entries,
    ),
    Difference(
        "numbers that are not whole, or written otherwise",
        "reading",
        "truncates fractions, takes `1e3`, `1_000`, `0b11`, and `08` as a decimal number",
        "takes decimal, octal and hexadecimal whole numbers only",
        "a number that says something else than was written is worse than an error; §5",
        _other_numbers,
    ),
    Difference(
        "quoted yes and no",
        "reading",
        'takes `"yes"`, `"on"`, `"y"` and their opposites as a flag, but not `"true"`',
        "a quoted text is no flag",
        "§5: a flag is true, false, or one of YAML 1.1's plain words",
        _quoted_words,
    ),
    Difference(
        "explicit tags",
        "reading",
        "heeds a tag such as `!!str` or `!!binary`, and refuses a value that contradicts it",
        "types follow the field; standard scalar tags are passed over, others are refused",
        "§5: types follow the target field",
        _tags,
    ),
    Difference(
        "JSON's \\/ and YAML 1.2's directive",
        "reading",
        "its YAML parser knows neither",
        "takes both",
        "both are what the formats allow",
        _unknown_to_their_parser,
    ),
    Difference(
        "null keys",
        "reading",
        "passes over a field whose name is null",
        "refuses it, as any unknown field",
        "§5: unknown fields at any level are errors",
        _null_keys,
    ),
    Difference(
        "limits",
        "reading",
        "reads documents of any size",
        "refuses more than 4 MiB, 100,000 nodes, or 32 levels",
        "one file must not hold up all others; §5",
        _limits,
    ),
    Difference(
        "hostPath and mount type before the last device",
        "reading",
        "looks for them in the edits of the last device only (its module is compiled for Go 1.19, "
        "where a loop has one variable), so that a document may have too low a version",
        "looks at every device",
        "§2: the spec-level edits and every device",
        _only_the_last_device,
    ),
)
WRITING = tuple(
    Difference(name, "writing", "writes such a document", "refuses to", reason, _extra(pattern))
    for name, pattern, reason in (
        (
            "relative paths",
            "is not absolute",
            "the standard asks for it, a runtime fails at it; §4",
        ),
        ("timeouts", "is not positive", "the standard asks for it; §4"),
        (
            "control characters",
            "a NUL or a line break",
            "no path, variable or option can have them; §4",
        ),
        ("mode and device numbers", "is not between 0", "the kernel has no such numbers; §4"),
        (
            "one place twice",
            "deviceNodes.* is defined twice|mounts.* is defined twice",
            "one hides the other; §4",
        ),
        ("FIFO with a major number", "a FIFO has no major", "it says two things; §4"),
        (
            "annotations",
            "is not a valid annotation key|bytes exceed",
            "the reference means to check them too; §23.1",
        ),
        (
            "one-character vendors and classes",
            "is one character",
            "library 1.1.0 and older, which runtimes have inside, crash at them; §3",
        ),
        ("long names", "is longer than (253|63) characters", "the standard's text limits them; §3"),
    )
)


CACHE = (
    Difference(
        "a conflict below a definition",
        "cache",
        "a name that two files of one directory define stays unresolvable, though a directory of a "
        "higher priority defines it",
        "the higher directory's definition, if it is the only one there, wins",
        "priorities exist so that one can be put above what is broken below; §7, §23.3",
        _is_above_a_conflict,
    ),
)
ANNOTATIONS = (
    Difference(
        "annotations that ask for nothing",
        "annotations",
        "writes an empty value for an empty list of devices, and then fails to parse it",
        "refuses to write it",
        "what we write, anybody can parse; §9",
        lambda update: not update["devices"],
    ),
)
EVERY = (*READING, *WRITING, *CACHE, *ANNOTATIONS)


def explaining(differences: tuple[Difference, ...], seen: Any) -> list[str]:
    """The names of those that explain it."""
    return [difference.name for difference in differences if difference.explains(seen)]
