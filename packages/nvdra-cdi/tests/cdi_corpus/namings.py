# SPDX-License-Identifier: Apache-2.0
"""Names and annotations given to both sides: `words` has them."""

from collections.abc import Callable
from typing import Any

from nvdra_cdi import annotations, names
from nvdra_cdi.errors import CDIError

from cdi_corpus import differences, words
from cdi_corpus.differences import ANNOTATIONS
from cdi_corpus.oracle import Oracle
from cdi_corpus.tally import Tally

_NAMES, _ANNOTATIONS = 1500, 600


def compared(seed: str, oracle: Oracle) -> Tally:
    """Ask both sides for everything."""
    tally = Tally()
    for text in words.names(seed, _NAMES):
        ours, theirs = _our_name(text), oracle.ask("name", text=text)
        theirs["isQualified"] = theirs.pop("error", None) is None
        _note(tally, "names", text, ours, theirs)
    for update in words.updates(seed, _ANNOTATIONS):
        theirs = oracle.ask("annotation-key", plugin=update["plugin"], deviceID=update["deviceID"])
        ours = _or_none(annotations.key, update["plugin"], update["deviceID"])
        _note(tally, "keys of annotations", update, ours, _or_refused(theirs, "key"))
        theirs = oracle.ask("update-annotations", **update)
        ours = _or_none(_updated, update)
        _note(tally, "annotations made", update, ours, _or_refused(theirs, "annotations"))
    for given in words.annotations(seed, _ANNOTATIONS):
        theirs = oracle.ask("parse-annotations", annotations=given)
        asked = None if "error" in theirs else _sorted(theirs["keys"], theirs["devices"])
        _note(tally, "annotations parsed", given, _or_none(_parsed, given), asked)
    return tally


def _note(tally: Tally, what: str, given: Any, ours: Any, theirs: Any) -> None:
    tally.asked[what] += 1
    if ours == theirs:
        return
    explained = differences.explaining(ANNOTATIONS, given) if what == "annotations made" else []
    tally.explained.update(explained)
    if not explained:
        tally.unexplained.append(f"{what}: {given!r}: {ours} is not {theirs}")


def _our_name(text: str) -> dict[str, Any]:
    return {
        "device": list(names.parse_device(text)),
        "qualifier": list(names.parse_qualifier(text)),
        "isVendor": _passes(names.validate_vendor, text),
        "isClass": _passes(names.validate_class, text),
        "isDevice": _passes(names.validate_device, text),
        "isQualified": names.is_qualified_name(text),
    }


def _updated(update: dict[str, Any]) -> dict[str, str]:
    there, plugin = update["annotations"], update["plugin"]
    return annotations.update(there, plugin, update["deviceID"], update["devices"])


def _parsed(given: dict[str, str]) -> tuple[list[str], list[str]]:
    found = annotations.parse(given)
    return _sorted(list(found), [device for each in found.values() for device in each])


def _sorted(keys: list[str] | None, devices: list[str] | None) -> tuple[list[str], list[str]]:
    return sorted(keys or []), sorted(devices or [])  # the reference library's order is random


def _or_refused(answer: dict[str, Any], key: str) -> Any:
    return None if "error" in answer else answer[key]


def _or_none(make: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return make(*arguments)
    except CDIError:
        return None


def _passes(check: Callable[[str], None], text: str) -> bool:
    try:
        check(text)
    except CDIError:
        return False
    return True
