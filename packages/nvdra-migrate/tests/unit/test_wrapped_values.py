# SPDX-License-Identifier: Apache-2.0
"""Files that have the values of the reference's chart inside."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from nvdra_migrate import wrapped_values
from nvdra_migrate.chart_releases import ABOVE, ALONE, BELOW
from nvdra_migrate.values_text import Reader, ValuesFileError
from nvdra_migrate.wrapped_values import AmbiguousValuesError, WrappedValues

OURS = {"gpuResourcesEnabledOverride": True, "logVerbosity": 6}
TEXT = "gpuResourcesEnabledOverride: true\nlogVerbosity: 6\n"


def found(*documents: Any, at: str | None = None) -> WrappedValues:
    return wrapped_values.find(documents, Reader(), at)


def refused(*documents: Any, at: str | None = None) -> str:
    with pytest.raises(ValuesFileError) as error:
        found(*documents, at=at)
    return str(error.value)


def choices(*documents: Any) -> tuple[str, ...]:
    with pytest.raises(AmbiguousValuesError) as error:
        found(*documents)
    for place in error.value.places:
        assert found(*documents, at=place).place == place
    return error.value.places


def thing(kind: str, group: str, spec: Mapping[str, Any], name: str = "dra") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "gpu"}
    return {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "spec": spec}


def flux(chart: Any = "nvidia-dra-driver-gpu", name: str = "dra", **spec: Any) -> dict[str, Any]:
    whole = {"chart": {"spec": {"chart": chart}} if isinstance(chart, str) else chart, **spec}
    return thing("HelmRelease", "helm.toolkit.fluxcd.io", whole, name)


def application(*sources: Mapping[str, Any], kind: str = "Application") -> dict[str, Any]:
    spec = {"source": sources[0]} if len(sources) == 1 else {"sources": list(sources)}
    whole = {"template": {"spec": spec}} if kind == "ApplicationSet" else spec
    return thing(kind, "argoproj.io", whole)


def source(chart: str = "nvidia-dra-driver-gpu", **helm: Any) -> dict[str, Any]:
    return {"repoURL": "https://charts.example.com", "chart": chart, "helm": helm}


def k3s(kind: str = "HelmChart", **spec: Any) -> dict[str, Any]:
    return thing(kind, "helm.cattle.io", spec)


def helmfile(chart: str = "nvidia/nvidia-dra-driver-gpu", **release: Any) -> dict[str, Any]:
    return {"releases": [{"name": "dra", "chart": chart, **release}]}


CHART = "oci://registry.example.com/charts/dra-driver-nvidia-gpu:0.5.0"
SHAPES: Sequence[tuple[str, Any]] = (
    (".", OURS),
    ("HelmRelease/gpu/dra:spec.values", flux(values=OURS)),
    ("HelmRelease/gpu/dra:spec.values", flux("./charts/dra-driver-nvidia-gpu/", values=OURS)),
    ("Application/gpu/dra:spec.source.helm", application(source(values=TEXT))),
    ("Application/gpu/dra:spec.source.helm", application(source(CHART, valuesObject=OURS))),
    (
        "Application/gpu/dra:spec.sources[1].helm",
        application({"repoURL": "x", "ref": "values"}, source(valuesObject=OURS)),
    ),
    (
        "ApplicationSet/gpu/dra:spec.template.spec.source.helm",
        application(source("{{ .chart }}", valuesObject=OURS), kind="ApplicationSet"),
    ),
    ("HelmChart/gpu/dra:spec", k3s(chart="nvidia/nvidia-dra-driver-gpu", valuesContent=TEXT)),
    (
        "HelmChart/gpu/dra:spec",
        k3s(chart="https://x/nvidia-dra-driver-gpu-25.3.2.tgz", values=OURS),
    ),
    ("HelmChartConfig/gpu/dra:spec", k3s("HelmChartConfig", valuesContent=TEXT)),
    ("releases[0].values", helmfile(values=[OURS])),
    ("nvidia-dra-driver-gpu", {"nvidia-dra-driver-gpu": OURS, "image": {"tag": "x"}}),
    ("charts.dra-driver-nvidia-gpu", {"charts": {"dra-driver-nvidia-gpu": OURS}}),
    ("addons[0].gpu-dra", {"addons": [{"gpu-dra": OURS}], "resources": {}, "image": {}}),
    (
        "HelmRelease/gpu/dra:spec.values.nvidia-dra-driver-gpu",
        flux("platform", values={"nvidia-dra-driver-gpu": OURS}),
    ),
    (
        "Application/gpu/dra:spec.source.helm.gpu-dra",
        application(source("platform", values="gpu-dra:\n  " + TEXT.replace("\n", "\n  "))),
    ),
    (
        "Release/gpu/dra:spec.forProvider.values",
        thing("Release", "helm.crossplane.io", {"forProvider": {"values": OURS}}),
    ),
    ("apps.dra.source.helm", {"apps": {"dra": {"source": source(valuesObject=OURS)}}}),
)


@pytest.mark.parametrize(("place", "document"), SHAPES, ids=lambda value: str(value)[:60])
def test_the_values_are_found_in_each_shape(place: str, document: Any) -> None:
    for rest in ((), (flux("gpu-operator", "op", values={"image": {}}),)):
        result = found(document, *rest)
        assert result == WrappedValues(place, OURS)
        assert found(document, *rest, at=place) == result


def test_a_release_of_an_unknown_chart_is_known_by_its_name() -> None:
    values = {"logVerbosity": 6}
    assert found(flux("", "my-nvidia-dra-driver-gpu", values=values)).values == values
    assert "a chart without a name at HelmRelease" in refused(flux("", values=values))


def test_the_name_of_a_folder_need_not_be_that_of_its_chart() -> None:
    git = {"repoURL": "https://git.example.com", "path": "apps/gpu", "helm": {"valuesObject": OURS}}
    assert found(application(git)).values == OURS
    chart = {"spec": {"chart": "apps/gpu", "sourceRef": {"kind": "GitRepository"}}}
    assert found(flux(chart=chart, values=OURS)).values == OURS
    umbrella = {**git, "path": "apps/nvidia-dra-driver-gpu"}
    umbrella["helm"] = {"valuesObject": {"nvidia-dra-driver-gpu": OURS}}
    assert found(application(umbrella)).values == OURS


def test_nothing_is_the_whole_of_an_empty_file() -> None:
    assert found() == found(None) == found({}) == WrappedValues(".", {})


def test_a_list_of_objects_is_as_good_as_the_objects() -> None:
    items = [flux("gpu-operator", "op", values={"a": 1}), flux(values=OURS)]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    assert found(listed) == found(*items)


def test_where_several_parts_could_be_meant_they_are_listed() -> None:
    assert choices(flux(values=OURS), flux(name="b", values=OURS)) == (
        "HelmRelease/gpu/dra:spec.values",
        "HelmRelease/gpu/b:spec.values",
    )
    assert choices(application(source(valuesObject=OURS), source(valuesObject={}))) == (
        "Application/gpu/dra:spec.sources[0].helm",
        "Application/gpu/dra:spec.sources[1].helm",
    )
    assert choices({"a": {"nvidia-dra-driver-gpu": OURS}, "b": {"dra-driver-nvidia-gpu": {}}}) == (
        "a.nvidia-dra-driver-gpu",
        "b.dra-driver-nvidia-gpu",
    )
    assert choices(OURS, OURS) == (".", "#2")
    assert choices({**OURS, "gpu-dra": OURS}) == (".", "gpu-dra")
    assert choices(flux(values=OURS), flux(values=OURS)) == (
        "HelmRelease/gpu/dra:spec.values",
        "HelmRelease/gpu/dra#2:spec.values",
    )


@pytest.mark.parametrize(
    ("place", "document"),
    [
        ("HelmRelease/gpu/dra:spec.values", flux("gpu-operator", values=OURS)),
        (
            "Application/gpu/dra:spec.source.helm",
            application(source("gpu-operator", valuesObject=OURS)),
        ),
        ("HelmChart/gpu/dra:spec", k3s(chart="gpu-operator", valuesContent=TEXT)),
        ("releases[0].values", helmfile("nvidia/gpu-operator", values=[OURS])),
    ],
)
def test_the_values_of_another_chart_are_taken_only_if_they_are_named(
    place: str, document: Any
) -> None:
    assert f"Found: gpu-operator at {place}. Name" in refused(document)
    assert found(document, at=place).values == OURS


def test_a_file_without_such_values_says_what_was_looked_for() -> None:
    object_ = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {}}
    for document, seen, place in (
        (object_, "ConfigMap/x", "ConfigMap/x:KEY.KEY"),
        ({"a": 1, "b": 2}, "the keys a, b", "KEY.KEY"),
    ):
        error = refused(document)
        assert f"Found: {seen}. Name the part with --at {place}, or " in error
        for word in ("HelmRelease (Flux)", "Argo CD", "k3s", "helmfile"):
            assert word in error


def test_a_mistake_in_a_key_is_no_reason_to_refuse_a_values_file() -> None:
    assert found({"contoller": {"replicas": 2}}).place == "."


def test_any_map_can_be_named() -> None:
    content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    assert (
        found({**content, "data": {"v.yaml": TEXT}}, at=r"ConfigMap/x:data.v\.yaml").values == OURS
    )
    assert found({"a": [{"b": {"image": {}}}]}, at="a[0].b").values == {"image": {}}
    assert found(
        flux(values={"x": {"image": {}}}), at="HelmRelease/gpu/dra:spec.values.x"
    ).values == {"image": {}}
    assert "no map of values at a.b; it has ., #2" in refused({"a": 1}, {"c": 2}, at="a.b")
    assert "no map of values at a" in refused({"a": 1}, at="a")


def test_argo_cd_prefers_parameters_to_the_object_to_the_text() -> None:
    parameters = [
        {"name": "logVerbosity", "value": "7", "forceString": True},
        {"name": "logVerbosity", "value": "8"},
        {"name": r"kubeletPlugin.nodeSelector.nvidia\.com/gpu", "value": "true"},
        {"name": "kubeletPlugin.podAnnotations.a", "value": "x,y"},
        {"name": "imagePullSecrets", "value": "{a,b}"},
    ]
    whole = {"kubeletPlugin": {"priorityClassName": "x"}, "logVerbosity": 5}
    helm: Any = {"values": "logVerbosity: 4\nimage: {tag: x}", "parameters": parameters}
    assert found(application(source(**helm, valuesObject=whole))).values == {
        "kubeletPlugin": {
            "priorityClassName": "x",
            "nodeSelector": {"nvidia.com/gpu": True},
            "podAnnotations": {"a": "x,y"},
        },
        "logVerbosity": "7",
        "imagePullSecrets": ["a", "b"],
    }
    assert found(application(source(**helm))).values["image"] == {"tag": "x"}
    assert "image" not in found(application(source(**helm, valuesObject={}))).values


def test_k3s_joins_the_chart_and_its_config_below_what_is_set() -> None:
    chart = k3s(
        chart="nvidia/nvidia-dra-driver-gpu",
        valuesContent="{a: 1, b: 1, c: 1, d: 1}",
        values={"b": 2, "c": 2, "d": 2},
        set={"d": 4, "e": "4", "f": "true", "g": "x,y"},
    )
    config = k3s("HelmChartConfig", valuesContent="{c: 3, d: 3}")
    expected = {"a": 1, "b": 2, "c": 3, "d": 4, "e": "4", "f": True, "g": "x,y"}
    for documents in ((chart, config), (config, chart)):
        assert found(*documents).values == expected


def test_helmfile_joins_maps_below_what_is_set() -> None:
    release = helmfile(
        values=[{"a": 1, "b": 1}, {"b": 2, "c": 2}], set=[{"name": "c", "value": "{x},y"}]
    )
    assert found(release).values == {"a": 1, "b": 2, "c": "{x},y"}


def test_flux_may_name_the_chart_by_another_object() -> None:
    reference = {"kind": "OCIRepository", "name": "repository"}
    release = thing(
        "HelmRelease", "helm.toolkit.fluxcd.io", {"chartRef": reference, "values": {"a": 1}}
    )
    ours = thing("OCIRepository", "source", {"url": CHART}, "repository")
    assert found(release, ours).values == {"a": 1}
    other = {**ours, "spec": {"url": "oci://x/gpu-operator"}}
    assert "gpu-operator at HelmRelease" in refused(release, other)
    elsewhere = {**ours, "metadata": {"name": "repository", "namespace": "other"}}
    assert "a chart without a name at HelmRelease" in refused(release, elsewhere)


def test_values_that_are_only_named_are_listed_with_their_order() -> None:
    flux_sources = [
        {"kind": "ConfigMap", "name": "a"},
        {"kind": "Secret", "name": "b", "targetPath": "x"},
    ]
    for document, external in (
        (
            flux(valuesFrom=flux_sources),
            [
                ("spec.valuesFrom[0]", "ConfigMap a", BELOW),
                ("spec.valuesFrom[1]", "Secret b", ALONE),
            ],
        ),
        (
            application(source(valueFiles=["$values/a.yaml"], fileParameters=[{"path": "b"}])),
            [
                ("spec.source.helm.valueFiles", "$values/a.yaml", BELOW),
                ("spec.source.helm.fileParameters", "b", ALONE),
            ],
        ),
        (
            k3s(chart="nvidia-dra-driver-gpu", valuesSecrets=[{"name": "a"}]),
            [("spec.valuesSecrets[0]", "Secret a", ABOVE)],
        ),
        (
            helmfile(values=["a.yaml", {"x": 1}, "b.yaml"], set=[{"name": "c", "file": "d"}]),
            [
                ("releases[0].values[0]", "a.yaml", BELOW),
                ("releases[0].values[2]", "b.yaml", ABOVE),
                ("releases[0].set[0]", "d", ALONE),
            ],
        ),
    ):
        result = found(document)
        assert list(result.external) == external
        _, outcomes = wrapped_values.joined([result])
        assert [(outcome.path, outcome.remedy) for outcome in outcomes] == [
            (path, remedy) for path, _, remedy in external
        ]
        _, outcomes = wrapped_values.joined([WrappedValues(".", {}), result])
        assert [outcome.remedy for outcome in outcomes] == [""] * len(external)


def test_of_several_files_the_last_one_wins() -> None:
    first = WrappedValues(".", {"a": {"b": 1, "c": 1}})
    second = WrappedValues(".", {"a": {"c": 2}})
    assert wrapped_values.joined([first, second])[0] == {"a": {"b": 1, "c": 2}}


def test_the_switch_of_a_dependency_belongs_to_the_chart_around_it() -> None:
    result = found({"nvidia-dra-driver-gpu": {"enabled": True, **OURS}})
    assert result.values == OURS
    (outcome,) = result.outcomes
    assert outcome.path == "nvidia-dra-driver-gpu.enabled"
    assert not outcome.remedy
    assert found({**OURS, "enabled": True}).values == {**OURS, "enabled": True}


def test_globals_that_nvdra_reads_are_named() -> None:
    around = {"global": {"imageRegistry": "x", "own": 1}}
    part = {"nvidia-dra-driver-gpu": OURS, "global": {"imagePullSecrets": []}}
    for place in (None, "parts.nvidia-dra-driver-gpu"):
        (outcome,) = found({**around, "parts": part}, at=place).outcomes
        assert "nvdra reads imagePullSecrets, imageRegistry" in outcome.reason
    assert found({"global": {"own": 1}, "nvidia-dra-driver-gpu": OURS}).outcomes == ()


def test_globals_below_a_dependency_are_no_values_of_it() -> None:
    for own, carried in (({}, 0), ({"imageRegistry": "x"}, 1)):
        result = found({"nvidia-dra-driver-gpu": {**OURS, "global": own}})
        assert result.values == OURS
        assert [outcome.path for outcome in result.outcomes] == [
            "nvidia-dra-driver-gpu.global",
            *["global"] * carried,
        ]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (["a"], "a map, not list"),
        (flux(values=["a"]), "HelmRelease/gpu/dra:spec.values is no map"),
        (application(source(values="a: [")), "helm.values: while parsing"),
        (application(source(values="a: {{ .b }}")), "helm.values, with parameters that are not"),
        (application(source(values=["a"])), "helm.values is no text"),
        (application(source(parameters=[{"name": "a[", "value": 1}])), "helm takes no a[=1"),
        (k3s(chart="nvidia-dra-driver-gpu", valuesContent="- a"), "spec.valuesContent: a values"),
        (k3s(chart="nvidia-dra-driver-gpu", set=[1]), "spec.set is no map"),
    ],
)
def test_a_part_that_cannot_be_read_is_named(document: Any, reason: str) -> None:
    assert reason in refused(document)
