import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.protocol import apiversions

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
    assert apiversions.choose({"kind": "APIGroup", "versions": versions}) == chosen


def test_in_v1beta1_a_device_lies_below_basic() -> None:
    obj = {
        "spec": {
            "driver": "d",
            "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": "u"}}}],
        }
    }
    written = apiversions.slice_to("v1beta1", obj)
    assert written["apiVersion"] == "resource.k8s.io/v1beta1"
    assert written["spec"]["devices"] == [
        {"name": "gpu-0", "basic": {"attributes": {"uuid": {"string": "u"}}}}
    ]


@given(SLICES, st.sampled_from(apiversions.VERSIONS))
def test_a_slice_survives_every_version_and_the_caller_keeps_his(
    obj: apiversions.JsonObject, version: str
) -> None:
    before = copy.deepcopy(obj)
    assert apiversions.slice_from(version, apiversions.slice_to(version, obj)) == before
    assert obj == before


def test_paths_name_the_version() -> None:
    assert apiversions.slices_path("v1") == "/apis/resource.k8s.io/v1/resourceslices"
    assert apiversions.slices_path("v1beta2", "a") == (
        "/apis/resource.k8s.io/v1beta2/resourceslices/a"
    )
    assert apiversions.claim_path("v1beta1", "ns", "c") == (
        "/apis/resource.k8s.io/v1beta1/namespaces/ns/resourceclaims/c"
    )
