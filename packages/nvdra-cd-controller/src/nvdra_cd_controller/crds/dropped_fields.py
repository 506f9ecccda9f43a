# SPDX-License-Identifier: Apache-2.0
"""What a definition of the cluster lacks of ours: the API server drops such fields silently."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from nvdra_api.meta import JsonObject
from nvdra_api.names import NVIDIA_API_VERSION

from nvdra_cd_controller.crds.definitions import Definition

_OF_EVERY_OBJECT: Final = frozenset({"apiVersion", "kind", "metadata"})


@dataclass(frozen=True, slots=True)
class Lack:
    """What a served definition lacks.

    Attributes:
        version: Our version of the API, if it is not served; all else is empty then.
        fields: Paths of fields that are dropped, such as `status.nodes[].index`. A field that is
            dropped whole stands for those below it.
        columns: Names of columns that `kubectl get` does not show.
        required: Paths of fields that users must set, and need not with ours.
    """

    version: str = ""
    fields: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.version or self.fields or self.columns or self.required)

    def __str__(self) -> str:
        """Return `drops the fields a, b; has no columns C; requires the fields d`."""
        version = (self.version,) if self.version else ()
        parts = (
            ("does not serve the version ", version),
            ("drops the fields ", self.fields),
            ("has no columns ", self.columns),
            ("requires the fields ", self.required),
        )
        return "; ".join(intro + ", ".join(names) for intro, names in parts if names)


def find(own: Definition, served: Definition) -> Lack:
    """What the served definition lacks of ours, in the version of the API that we use."""
    ours, theirs = _our_version(own), _our_version(served)
    if ours is None or theirs is None or not theirs.get("served"):
        return Lack(version=NVIDIA_API_VERSION)
    our_schema, their_schema = _schema(ours), _schema(theirs)
    shown = set(_columns(theirs))
    return Lack(
        fields=tuple(_dropped(our_schema, their_schema)),
        columns=tuple(column for column in _columns(ours) if column not in shown),
        required=tuple(_required(our_schema, their_schema)),
    )


def _our_version(definition: Definition) -> JsonObject | None:
    name = NVIDIA_API_VERSION.partition("/")[2]
    versions: list[JsonObject] = definition.document["spec"]["versions"]
    return next((version for version in versions if version["name"] == name), None)


def _schema(version: JsonObject) -> JsonObject:
    return (version.get("schema") or {}).get("openAPIV3Schema") or {}


def _columns(version: JsonObject) -> list[str]:
    return [column["name"] for column in version.get("additionalPrinterColumns") or ()]


def _dropped(ours: JsonObject, theirs: JsonObject, path: str = "") -> Iterator[str]:
    if theirs.get("x-kubernetes-preserve-unknown-fields"):
        return
    for place, our_field, their_field in _fields(ours, theirs, path):
        if their_field is None:
            yield place
        else:
            yield from _dropped(our_field, their_field, place)


def _required(ours: JsonObject, theirs: JsonObject, path: str = "") -> Iterator[str]:
    more = set(theirs.get("required") or ()) - set(ours.get("required") or ())
    yield from (_below(path, name) for name in sorted(more))
    for place, our_field, their_field in _fields(ours, theirs, path):
        if their_field is not None:
            yield from _required(our_field, their_field, place)


def _fields(
    ours: JsonObject, theirs: JsonObject, path: str
) -> Iterator[tuple[str, JsonObject, JsonObject | None]]:
    """Our fields at a place, and theirs of the same name."""
    our_items = ours.get("items")
    if our_items is not None:
        yield f"{path}[]", our_items, theirs.get("items") or {}
    known = theirs.get("properties") or {}
    for name, field in sorted((ours.get("properties") or {}).items()):
        if path or name not in _OF_EVERY_OBJECT:
            yield _below(path, name), field, known.get(name)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
