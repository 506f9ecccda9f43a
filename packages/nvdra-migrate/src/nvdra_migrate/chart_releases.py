# SPDX-License-Identifier: Apache-2.0
"""Where files name a chart together with its values: one row for each shape. Pure.

Sources: the API references of Flux (HelmRelease), Argo CD (Application, "Helm"), k3s
(HelmChart, HelmChartConfig) and helmfile.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from nvdra_migrate import helm_values, places
from nvdra_migrate.helm_values import Setting
from nvdra_migrate.places import Place
from nvdra_migrate.rules import Values, at
from nvdra_migrate.values_text import Reader, ValuesFileError

REFERENCE_CHARTS: Final = ("dra-driver-nvidia-gpu", "nvidia-dra-driver-gpu")
"""The chart's name since release 0.4, and before."""
_ARCHIVE: Final = re.compile(r"-v?[0-9]+\..*\.tgz$|:[^/:]*$")
"""What follows the name of a chart in the URL of an archive or an image."""
_K3S: Final = "helm.cattle.io/"


class ExternalValues(NamedTuple):
    """Values of a release that its file only names.

    Attributes:
        path: Where it names them.
        origin: What has them.
        remedy: How they can be carried, too.
    """

    path: str
    origin: str
    remedy: str


BELOW: Final = "name a file with them before this one: nvdra-migrate values THAT_FILE THIS_FILE"
ABOVE: Final = "name a file with them after this one: nvdra-migrate values THIS_FILE THAT_FILE"
ALONE: Final = "write the value into a values file, and name that file after this one"


@dataclass(frozen=True, slots=True)
class Release:
    """A chart with its values.

    Attributes:
        place: Where the values are.
        chart: The chart's name, without a repository; empty if the file does not say it.
        values: Its values, joined as its tool joins them.
        external: The values that the file only names.
        name: What the object is called.
    """

    place: Place
    chart: str
    values: Values
    external: tuple[ExternalValues, ...] = ()
    name: str = ""


class File(NamedTuple):
    """What a shape may look at besides its own part.

    Attributes:
        objects: The objects of the file by kind and name, those in lists included.
        reader: Reads values that are a text.
    """

    objects: Mapping[str, Values]
    reader: Reader


class Shape(NamedTuple):
    """A way to keep values.

    Attributes:
        name: What it is called, for errors.
        fits: Whether a map is of this shape.
        release: The chart with its values; None if another part of the file says it.
    """

    name: str
    fits: Callable[[Values], bool]
    release: Callable[[Values, Place, File], Release | None]


def file_of(documents: Sequence[Any], reader: Reader) -> File:
    """The objects of a file, those in lists included."""
    objects = {
        places.of_object(found, Place()).document: found
        for document in documents
        for found in _objects(document)
    }
    return File(objects, reader)


def _objects(document: Any) -> Iterator[Values]:
    if isinstance(document, Mapping):
        yield document
        yield from _maps(document.get("items"))


def within(part: Any, place: Place, file: File) -> Iterator[Release]:
    """Every chart with values in a part of a file, in its order.

    Args:
        part: A document, or what is in it.
        place: Where that is.
        file: The whole file.

    Raises:
        ValuesFileError: Values that are a text cannot be read.
    """
    if isinstance(part, list):
        for index, item in enumerate(part):
            yield from within(item, place.item(index), file)
    if not isinstance(part, Mapping):
        return
    if place.path:  # a document has its place already
        place = places.of_object(part, place)
    shape = next((row for row in SHAPES if row.fits(part)), None)
    if shape is None:
        for key, value in part.items():
            yield from within(value, place.key(key), file)
        return
    release = shape.release(part, place, file)
    if release is not None:
        yield release


def _chart_name(text: Any, *, is_folder: bool = False) -> str:
    """The name of a chart: `NAME`, `nvidia/NAME`, a URL, or a folder, which may have any name."""
    if not isinstance(text, str) or "{{" in text:
        return ""
    name = _ARCHIVE.sub("", text.rstrip("/").rpartition("/")[2])
    may_differ = is_folder or text.startswith((".", "/"))
    return "" if may_differ and name not in REFERENCE_CHARTS else name


def _map(value: Any, place: Place) -> Values:
    if value is not None and not isinstance(value, Mapping):
        raise ValuesFileError(f"{place} is no map of values")
    return value or {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _maps(value: Any) -> list[Values]:
    return [item for item in _items(value) if isinstance(item, Mapping)]


def _text(value: Any, place: Place, reader: Reader) -> Values:
    """Values that are a text of YAML."""
    if value is not None and not isinstance(value, str):
        raise ValuesFileError(f"{place} is no text")
    try:
        return reader.values(value or "")
    except ValuesFileError as error:
        remark = ", with parameters that are not filled in" if "{{" in (value or "") else ""
        raise ValuesFileError(f"{place}{remark}: {error}") from error


def _is_kind(*kinds: str, group: str = "") -> Callable[[Values], bool]:
    return lambda part: (
        part.get("kind") in kinds
        and str(part.get("apiVersion", "")).startswith(group)
        and isinstance(part.get("spec"), Mapping)
    )


def _flux(part: Values, place: Place, file: File) -> Release:
    own = place.key("spec", "values")
    files = [
        ExternalValues("spec.chart.spec.valuesFiles", str(name), BELOW)
        for name in _items(at(part, "spec.chart.spec.valuesFiles"))
    ]
    sources = [
        ExternalValues(
            f"spec.valuesFrom[{index}]",
            f"{source.get('kind')} {source.get('name')}",
            ALONE if source.get("targetPath") else BELOW,
        )
        for index, source in enumerate(_maps(at(part, "spec.valuesFrom")))
    ]
    return Release(
        own,
        _flux_chart(part, file),
        _map(at(part, "spec.values"), own),
        (*files, *sources),
        str(at(part, "metadata.name")),
    )


def _flux_chart(part: Values, file: File) -> str:
    """The chart of a HelmRelease, which another object may name: `spec.chartRef`."""
    reference = at(part, "spec.chartRef")
    if isinstance(reference, Mapping):
        namespace = reference.get("namespace") or at(part, "metadata.namespace")
        names = filter(None, (reference.get("kind"), namespace, reference.get("name")))
        named = file.objects.get("/".join(map(str, names)), {})
        return _chart_name(at(named, "spec.chart") or at(named, "spec.url"))
    is_folder = at(part, "spec.chart.spec.sourceRef.kind", "HelmRepository") != "HelmRepository"
    return _chart_name(at(part, "spec.chart.spec.chart"), is_folder=is_folder)


def _is_argo_source(part: Values) -> bool:
    is_helm = isinstance(part.get("chart"), str) or isinstance(part.get("helm"), Mapping)
    return "repoURL" in part and is_helm


def _argo(part: Values, place: Place, file: File) -> Release:
    """A source of an Application: parameters over valuesObject, or else values, over files."""
    own = place.key("helm")
    helm = _map(part.get("helm"), own)
    whole = helm.get("valuesObject")
    values = (
        _text(helm.get("values"), own.key("values"), file.reader)
        if whole is None
        else _map(whole, own.key("valuesObject"))
    )
    parameters = [
        Setting(
            str(parameter.get("name", "")),
            _in_one(str(parameter.get("value", ""))),
            parameter.get("forceString") is True,
        )
        for parameter in _maps(helm.get("parameters"))
    ]
    files = [
        ExternalValues(f"{own.path}.valueFiles", str(name), BELOW)
        for name in _items(helm.get("valueFiles"))
    ]
    single = [
        ExternalValues(f"{own.path}.fileParameters", str(parameter.get("path")), ALONE)
        for parameter in _maps(helm.get("fileParameters"))
    ]
    chart = _chart_name(part.get("chart")) or _chart_name(part.get("path"), is_folder=True)
    values = helm_values.with_settings(values, parameters)
    return Release(own, chart, values, (*files, *single), str(helm.get("releaseName", "")))


def _in_one(text: str) -> str:
    """The text of a parameter as one value, unless it is a list in braces, as Argo CD does."""
    is_list = text.startswith("{") and text.endswith("}")
    return text if is_list else _escaped(text)


def _escaped(text: str) -> str:
    """The text with a backslash before each comma that has none."""
    return re.sub(r"(?<!\\),", r"\\,", text)


def _k3s(part: Values, place: Place, file: File) -> Release | None:
    """A HelmChart with the HelmChartConfig of its name, or that alone."""
    kind, _, name = places.of_object(part, Place()).document.partition("/")
    other = file.objects.get(f"{'HelmChartConfig' if kind == 'HelmChart' else 'HelmChart'}/{name}")
    same = [other] if other and _IS_K3S(other) else []
    if same and kind == "HelmChartConfig":
        return None
    values: Values = {}
    external: list[ExternalValues] = []
    for found in (part, *same):
        spec = found["spec"]
        own = place.key("spec", "valuesContent")
        values = helm_values.merged(values, _text(spec.get("valuesContent"), own, file.reader))
        values = helm_values.merged(values, _map(spec.get("values"), place.key("spec", "values")))
        external += [
            ExternalValues(f"spec.valuesSecrets[{index}]", f"Secret {secret.get('name')}", ABOVE)
            for index, secret in enumerate(_maps(spec.get("valuesSecrets")))
        ]
    settings = [
        Setting(
            key,
            _escaped(_as_written(value)),
            isinstance(value, str) and value.lower() not in ("true", "false", "null"),
        )
        for key, value in sorted(_map(at(part, "spec.set"), place.key("spec", "set")).items())
    ]
    values = helm_values.with_settings(values, settings)
    chart = _chart_name(at(part, "spec.chart"))
    return Release(place.key("spec"), chart, values, tuple(external), name)


_IS_K3S: Final = _is_kind("HelmChart", "HelmChartConfig", group=_K3S)


def _is_helmfile_release(part: Values) -> bool:
    is_named = isinstance(part.get("chart"), str) and isinstance(part.get("name"), str)
    return is_named and (isinstance(part.get("values"), list) or isinstance(part.get("set"), list))


def _helmfile(part: Values, place: Place, _: File) -> Release:
    values: Values = {}
    external: list[ExternalValues] = []
    own = place.key("values")
    for index, item in enumerate(_items(part.get("values"))):
        if isinstance(item, Mapping):
            values = helm_values.merged(values, item)
        else:
            remedy = ABOVE if values else BELOW
            external.append(ExternalValues(own.item(index).path, str(item), remedy))
    settings: list[Setting] = []
    for index, setting in enumerate(_maps(part.get("set"))):
        if "value" in setting:
            text = re.sub(r"([{},])", r"\\\1", _as_written(setting["value"]))
            settings.append(Setting(str(setting.get("name")), text, is_text=False))
        else:
            path = place.key("set").item(index).path
            origin = setting.get("file") or setting.get("values")
            external.append(ExternalValues(path, str(origin), ALONE))
    values = helm_values.with_settings(values, settings)
    chart, name = _chart_name(part["chart"]), str(part["name"])
    return Release(own, chart, values, tuple(external), name)


def _as_written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


SHAPES: Final[Sequence[Shape]] = (
    Shape("spec.values of a HelmRelease (Flux)", _is_kind("HelmRelease"), _flux),
    Shape("helm of a source of an Application (Argo CD)", _is_argo_source, _argo),
    Shape("valuesContent of a HelmChart (k3s, RKE2)", _IS_K3S, _k3s),
    Shape("values of a release (helmfile)", _is_helmfile_release, _helmfile),
)
