# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.meta import JsonObject
from nvdra_runtime.kube import apiversions

TEXT = st.text("abcz-", min_size=1, max_size=5)
DEVICES = st.lists(
    st.fixed_dictionaries(
        {"name": TEXT},
        optional={
            "attributes": st.dictionaries(TEXT, st.fixed_dictionaries({"string": TEXT})),
            "capacity": st.dictionaries(TEXT, st.fixed_dictionaries({"value": TEXT})),
            "somethingNewer": TEXT,
        },
    )
)
SLICES = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"name": TEXT}),
        "spec": st.fixed_dictionaries({"driver": TEXT}, optional={"devices": DEVICES}),
    }
).map(lambda each: {**each, "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"})


@pytest.mark.parametrize(
    ("served", "chosen"),
    [
        (["v1", "v1beta2", "v1beta1"], "v1"),
        (["v1beta1", "v1beta2"], "v1beta2"),
        (["v1alpha3", "v1beta1"], "v1beta1"),
        (["v1alpha3"], None),
        ([], None),
        (["v2", "v1"], "v1"),
    ],
)
def test_the_newest_version_that_we_know_is_spoken(served: list[str], chosen: str | None) -> None:
    versions = [{"groupVersion": f"resource.k8s.io/{each}", "version": each} for each in served]
    assert apiversions.preferred_version({"kind": "APIGroup", "versions": versions}) == chosen


def test_in_v1beta1_a_device_lies_below_basic() -> None:
    obj = {
        "spec": {
            "driver": "d",
            "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": "u"}}}],
        }
    }
    written = apiversions.slice_to_version("v1beta1", obj)
    assert written["apiVersion"] == "resource.k8s.io/v1beta1"
    assert written["spec"]["devices"] == [
        {"name": "gpu-0", "basic": {"attributes": {"uuid": {"string": "u"}}}}
    ]


@given(SLICES, st.sampled_from(apiversions.VERSIONS))
def test_a_slice_survives_every_version_and_the_caller_keeps_his(
    obj: JsonObject, version: str
) -> None:
    before = copy.deepcopy(obj)
    assert (
        apiversions.slice_from_version(version, apiversions.slice_to_version(version, obj))
        == before
    )
    assert obj == before


def test_paths_name_the_version() -> None:
    assert apiversions.slices_path("v1") == "/apis/resource.k8s.io/v1/resourceslices"
    assert apiversions.slices_path("v1beta2", "a") == (
        "/apis/resource.k8s.io/v1beta2/resourceslices/a"
    )
    assert apiversions.claim_path("v1beta1", "ns", "c") == (
        "/apis/resource.k8s.io/v1beta1/namespaces/ns/resourceclaims/c"
    )


def template(request: JsonObject) -> JsonObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t"},
        "spec": {"spec": {"devices": {"requests": [request], "config": [{"requests": ["r"]}]}}},
    }


REQUEST = {"name": "r", "exactly": {"deviceClassName": "c", "count": 1}}
ALTERNATIVES = {"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "c"}]}


def test_in_v1beta1_a_request_says_beside_its_name_what_it_wants() -> None:
    written = apiversions.template_to_version("v1beta1", template(REQUEST))

    assert written["apiVersion"] == "resource.k8s.io/v1beta1"
    assert written["spec"]["spec"]["devices"] == {
        "requests": [{"name": "r", "deviceClassName": "c", "count": 1}],
        "config": [{"requests": ["r"]}],
    }


@pytest.mark.parametrize("version", apiversions.VERSIONS)
@pytest.mark.parametrize("request_", [REQUEST, ALTERNATIVES])
def test_a_template_survives_every_version_and_the_caller_keeps_his(
    request_: JsonObject, version: str
) -> None:
    obj = template(request_)
    written = apiversions.template_to_version(version, obj)

    assert written["apiVersion"] == f"resource.k8s.io/{version}"
    assert apiversions.template_from_version(version, written) == obj == template(request_)


def test_paths_of_templates_are_those_of_all_namespaces_of_one_and_of_one_template() -> None:
    path = "/apis/resource.k8s.io/v1"
    assert apiversions.templates_path("v1") == f"{path}/resourceclaimtemplates"
    assert apiversions.templates_path("v1", "n") == f"{path}/namespaces/n/resourceclaimtemplates"
    assert apiversions.templates_path("v1", "n", "t").endswith("/n/resourceclaimtemplates/t")
