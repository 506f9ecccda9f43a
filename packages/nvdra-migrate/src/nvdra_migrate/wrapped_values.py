# SPDX-License-Identifier: Apache-2.0
"""Which part of a file has the values of the reference's chart. Pure.

That is the whole of a plain values file. Other files keep the values in an object of a GitOps tool,
or in the values of a chart that has the reference's among its dependencies.
"""

import difflib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from nvdra_migrate import chart_releases, helm_values, places
from nvdra_migrate.chart_releases import REFERENCE_CHARTS, SHAPES, ExternalValues, Release
from nvdra_migrate.outcomes import Outcome, not_carried, unneeded
from nvdra_migrate.places import Place
from nvdra_migrate.reference_values import REFERENCE_VALUES
from nvdra_migrate.rules import Values
from nvdra_migrate.values_text import Reader, ValuesFileError, as_values

NVDRA_GLOBALS: Final = frozenset(
    {
        "additionalNamespaces",
        "admittedByOthers",
        "allowDefaultNamespace",
        "apiServerPorts",
        "devRoot",
        "featureGates",
        "imagePullPolicy",
        "imagePullSecrets",
        "imageRegistry",
        "imex",
        "logVerbosity",
        "loggingFormat",
        "nvidiaCDIHookPath",
        "nvidiaDriverRoot",
        "otlp",
        "podMonitors",
        "procRoot",
        "resourceApiVersion",
        "sysRoot",
        "testPod",
    }
)
"""What the chart nvdra reads from `global`, which helm hands from a chart to its dependencies."""
WHOLE_FILE: Final = str(Place())
"""The place of a plain values file."""
_OWN_KEYS: Final = frozenset(
    {
        "altProcDevices",
        "consumableShares",
        "gpuResourcesEnabledOverride",
        "maskNvidiaDriverParams",
        "nvidiaCDIHookPath",
    }
)
"""Keys that no other chart is known to have."""
_TOP_KEYS: Final = frozenset(path.partition(".")[0] for path in REFERENCE_VALUES)
_MAX_NAMED: Final = 20
"""How many objects an error names."""
_MAX_COMPARED: Final = 100
"""How many keys are searched for a mistake, at 1 ms a key."""
_MAX_KEYS: Final = 5
"""How many keys an error names."""


class AmbiguousValuesError(ValuesFileError):
    """Several parts of the file have values of the chart.

    Attributes:
        places: Where, as `--at` takes them.
    """

    def __init__(self, found: Sequence[str]) -> None:
        super().__init__(f"{len(found)} parts of it have values of the chart: choose one with --at")
        self.places = tuple(found)


@dataclass(frozen=True, slots=True)
class WrappedValues:
    """The values of the reference's chart, and where they were.

    Attributes:
        place: As `--at` takes it; `.` for the whole file.
        values: As the chart gets them.
        external: What belongs to them, and is only named there.
        outcomes: What became of the values around them.
    """

    place: str
    values: Values
    external: tuple[ExternalValues, ...] = ()
    outcomes: tuple[Outcome, ...] = ()


def find(documents: Sequence[Any], reader: Reader, chosen: str | None) -> WrappedValues:
    """Find the values of the reference's chart in a file.

    Args:
        documents: The documents of the file.
        reader: Reads values that are a text inside of them.
        chosen: The place that was chosen, or None.

    Raises:
        AmbiguousValuesError: Several parts have such values, and none was chosen.
        ValuesFileError: No part has, the chosen one has not, or it cannot be read.
    """
    parts = list(_numbered(documents, reader))
    found = [values for part in parts for values in _of_document(part)]
    if chosen is not None:
        same = (values for values in found if values.place == chosen)
        return next(same, None) or _at(chosen, parts, reader)
    if len(found) > 1:
        raise AmbiguousValuesError([values.place for values in found])
    if not found and parts:
        raise ValuesFileError(_nothing(parts))
    return found[0] if found else WrappedValues(WHOLE_FILE, {})


def joined(parts: Sequence[WrappedValues]) -> tuple[Values, list[Outcome]]:
    """The values of several files as helm joins them, and what became of what is around them.

    Args:
        parts: What was found in each file. The last one wins. There is at least one.
    """
    values: Values = {}
    outcomes: list[Outcome] = []
    for part in parts:
        values = helm_values.merged(values, part.values)
        outcomes += [
            unneeded(path, f"{origin} is taken for one of the files that were named")
            if len(parts) > 1
            else not_carried(
                path, f"its values are in {origin}, which this file only names", remedy
            )
            for path, origin, remedy in part.external
        ]
        outcomes += part.outcomes
    return values, outcomes


class _Document(NamedTuple):
    """A document of the file, with the charts that it names."""

    place: Place
    content: Values
    releases: Sequence[Release]

    @property
    def is_object(self) -> bool:
        """Whether it is a Kubernetes object, and so no values file."""
        return "apiVersion" in self.content and "kind" in self.content


def _numbered(documents: Sequence[Any], reader: Reader) -> Iterator[_Document]:
    given = [as_values(content) for content in documents if content is not None]
    file = chart_releases.file_of(given, reader)
    seen: set[Place] = set()
    for number, content in enumerate(given, 1):
        place = places.of_object(content, Place(f"#{number}" if number > 1 else ""))
        if place in seen:
            place = Place(f"{place.document}#{number}")
        seen.add(place)
        yield _Document(place, content, list(chart_releases.within(content, place, file)))


def _of_document(document: _Document) -> Iterator[WrappedValues]:
    if document.releases:
        for release in document.releases:
            yield from _of_release(release)
        return
    inside = list(_dependencies(document.content, document.place))
    is_plain = not document.is_object and (
        _is_distinct(document.content) or (not inside and _is_familiar(document.content))
    )
    if is_plain:
        yield WrappedValues(str(document.place), document.content)
    yield from inside


def _of_release(release: Release) -> Iterator[WrappedValues]:
    """Its values, or those of dependencies of its chart."""
    is_reference = release.chart in REFERENCE_CHARTS
    inside = list(_dependencies(release.values, release.place, by_name_alone=is_reference))
    seems_reference = not release.chart and (
        _is_distinct(release.values) or any(chart in release.name for chart in REFERENCE_CHARTS)
    )
    if seems_reference or (is_reference and not inside):
        inside.append(WrappedValues(str(release.place), release.values))
    for part in inside:
        yield replace(part, external=release.external)


def _dependencies(
    values: Values, place: Place, *, by_name_alone: bool = False
) -> Iterator[WrappedValues]:
    """Maps inside that are values of the reference's chart: by their keys, or else by theirs."""
    named = list(_below(values, place, frozenset(), lambda key, _: key in REFERENCE_CHARTS))
    if named or by_name_alone:
        return iter(named)
    return _below(values, place, frozenset(), lambda _, value: _is_distinct(value))


def _below(
    part: Any, place: Place, shared: Set[str], fits: Callable[[str, Any], bool]
) -> Iterator[WrappedValues]:
    if isinstance(part, list):
        for index, item in enumerate(part):
            yield from _below(item, place.item(index), shared, fits)
    if not isinstance(part, Mapping):
        return
    shared = shared | _handed_down(part)
    for key, value in part.items():
        if fits(key, value) and (value is None or isinstance(value, Mapping)):
            yield _dependency(str(place.key(key)), value or {}, shared)
        else:
            yield from _below(value, place.key(key), shared, fits)


def _handed_down(values: Values) -> Set[str]:
    """What helm hands from a chart to its dependencies, and nvdra reads."""
    own = values.get("global")
    return NVDRA_GLOBALS & own.keys() if isinstance(own, Mapping) else frozenset()


def _dependency(place: str, values: Values, shared: Set[str]) -> WrappedValues:
    """The values of a chart inside the values of another one.

    Args:
        place: Where they are.
        values: The values.
        shared: What nvdra reads of the `global` of the charts around.
    """
    outcomes = []
    around = set()
    if isinstance(values.get("enabled"), bool):
        around.add("enabled")
        outcomes.append(
            unneeded(
                f"{place}.enabled", "it is the switch of the chart around it, and belongs there"
            )
        )
    if isinstance(values.get("global"), Mapping):
        around.add("global")
        outcomes.append(unneeded(f"{place}.global", "the reference's chart reads none of it"))
    read = shared | _handed_down(values)
    if read:
        outcomes.append(
            not_carried(
                "global",
                f"helm hands it to every dependency; the reference's chart reads none of it, but "
                f"nvdra reads {', '.join(sorted(read))}",
                "see that these are meant for nvdra: they win over its own values of global",
            )
        )
    values = {key: value for key, value in values.items() if key not in around}
    return WrappedValues(place, values, outcomes=tuple(outcomes))


def _is_distinct(values: Any) -> bool:
    """Whether a map can be of the reference's chart only."""
    if not isinstance(values, Mapping):
        return False
    drivers = values.get("resources")
    has_drivers = isinstance(drivers, Mapping) and any(
        isinstance(drivers.get(key), Mapping) for key in ("gpus", "computeDomains")
    )
    return has_drivers or not _OWN_KEYS.isdisjoint(values)


def _is_familiar(values: Values) -> bool:
    """Whether a map may be of the reference's chart: it has a key of it, or a mistake in one."""
    if not values or not _TOP_KEYS.isdisjoint(values):
        return True
    return any(
        difflib.get_close_matches(key, _TOP_KEYS, n=1, cutoff=0.8)
        for key in itertools.islice(values, _MAX_COMPARED)
    )


def _at(chosen: str, documents: Sequence[_Document], reader: Reader) -> WrappedValues:
    """A map, or a text of values, that would not be taken for the chart's by itself."""
    releases = [release for document in documents for release in document.releases]
    for release in releases:
        if str(release.place) == chosen:
            return WrappedValues(chosen, release.values, release.external)
    roots = [
        *((release.place, release.values, release.external) for release in releases),
        *((document.place, document.content, ()) for document in documents),
    ]
    for place, values, external in roots:
        path = place.below(chosen)
        try:
            part = None if path is None else places.found(values, path)
        except KeyError:
            continue
        if isinstance(part, str):
            part = reader.values(part)
        if isinstance(part, Mapping):
            found = _dependency(chosen, part, frozenset()) if path else WrappedValues(chosen, part)
            return replace(found, external=external)
    known = ", ".join(str(place) for place, _, _ in roots[:_MAX_NAMED])
    raise ValuesFileError(f"there is no map of values at {chosen}; it has {known}")


def _nothing(documents: Sequence[_Document]) -> str:
    """Why no part of a file was taken, and what to do."""
    releases = [release for document in documents for release in document.releases]
    seen = [
        f"{release.chart or 'a chart without a name'} at {release.place}" for release in releases
    ]
    seen += [
        str(document.place)
        if document.is_object
        else f"the keys {', '.join(list(document.content)[:_MAX_KEYS])}"
        for document in documents
        if not document.releases
    ]
    looked_for = [
        "values at the top",
        f"the keys {' and '.join(REFERENCE_CHARTS)} at any depth",
        *(shape.name for shape in SHAPES),
    ]
    return (
        f"it has no values of the chart {' or '.join(REFERENCE_CHARTS)}. "
        f"Looked for: {'; '.join(looked_for)}. Found: {'; '.join(seen[:_MAX_NAMED])}. "
        f"Name the part with --at {documents[0].place.key('KEY', 'KEY')}, or pass a file with "
        "the values alone"
    )
