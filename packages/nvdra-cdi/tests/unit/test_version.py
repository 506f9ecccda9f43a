# SPDX-License-Identifier: Apache-2.0
"""The lowest version a document needs: docs/reference/cdi.md §2 and its vectors in §22."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_cdi import version
from nvdra_cdi.errors import VersionError
from nvdra_cdi.model import (
    ContainerEdits,
    Device,
    DeviceNode,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
)

_EDITS = ContainerEdits(env=("A=b",))
PLAIN = Spec("vendor.com/class", (Device("a", _EDITS),))


def with_device(edits: ContainerEdits) -> Spec:
    return replace(PLAIN, devices=(Device("a", edits),))


FEATURES = {
    "nothing special": (PLAIN, "0.3.0"),
    "a dot in the vendor": (replace(PLAIN, kind="a.b.c/d"), "0.3.0"),
    "a mount with a type": (
        with_device(ContainerEdits(mounts=(Mount("/a", "/a", type="bind"),))),
        "0.4.0",
    ),
    "a name that starts with a digit": (replace(PLAIN, devices=(Device("0", _EDITS),)), "0.5.0"),
    "a node with a host path": (
        with_device(ContainerEdits(device_nodes=(DeviceNode("/a", host_path="/b"),))),
        "0.5.0",
    ),
    "a dot in the class": (replace(PLAIN, kind="nvidia.com/imex.channel"), "0.6.0"),
    "a device annotation": (
        replace(PLAIN, devices=(Device("a", _EDITS, {"k": "v"}),)),
        "0.6.0",
    ),
    "a spec annotation": (replace(PLAIN, annotations={"k": "v"}), "0.6.0"),
    "an additional group": (with_device(ContainerEdits(additional_gids=(44,))), "0.7.0"),
    "additional group zero": (with_device(ContainerEdits(additional_gids=(0,))), "0.7.0"),
    "an empty intelRdt": (with_device(ContainerEdits(intel_rdt=IntelRdt())), "0.7.0"),
    "an empty schemata": (with_device(ContainerEdits(intel_rdt=IntelRdt(schemata=()))), "1.1.0"),
    "monitoring": (
        with_device(ContainerEdits(intel_rdt=IntelRdt(enable_monitoring=True))),
        "1.1.0",
    ),
    "a net device in the spec's edits": (
        replace(PLAIN, container_edits=ContainerEdits(net_devices=(NetDevice("eth0", "a"),))),
        "1.1.0",
    ),
}


@pytest.mark.parametrize(("spec", "minimum"), FEATURES.values(), ids=FEATURES.keys())
def test_each_feature_has_its_minimum(spec: Spec, minimum: str) -> None:
    assert version.minimum_required(spec) == minimum


@pytest.mark.parametrize("text", ["0.3.0", "v0.5.0", "1.0.0", "1.1.0"])
def test_a_version_that_suffices_is_accepted(text: str) -> None:
    version.validate_version(replace(PLAIN, version=text))


@pytest.mark.parametrize("text", ["0.9.0", "1.1.1", "1.0", "", "vv1.0.0"])
def test_an_unknown_version_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(VersionError, match=f'invalid version "{text}"'):
        version.validate_version(replace(PLAIN, version=text))


@pytest.mark.parametrize("text", ["0.1.0", "0.2.0"])
def test_versions_before_the_earliest_are_known_but_never_enough(text: str) -> None:
    with pytest.raises(VersionError, match=r"at least v0\.3\.0"):
        version.validate_version(replace(PLAIN, version=text))


@pytest.mark.parametrize(
    "spec",
    [
        replace(PLAIN, kind="vendor.com"),
        replace(PLAIN, kind="vendor.com/"),
        replace(PLAIN, devices=(Device("٣", _EDITS),)),
    ],
    ids=["a kind without class", "a kind with an empty class", "a digit of another script"],
)
def test_what_only_resembles_a_feature_needs_no_version(spec: Spec) -> None:
    assert version.minimum_required(spec) == "0.3.0"


def test_a_version_too_low_for_a_host_path_is_told_the_minimum() -> None:
    spec, _ = FEATURES["a node with a host path"]
    with pytest.raises(VersionError, match=r"at least v0\.5\.0"):
        version.validate_version(replace(spec, version="0.4.0"))


@pytest.mark.parametrize("text", ["0.7.0", "0.8.0", "1.0.0"])
def test_cache_monitoring_of_old_is_accepted_while_it_existed(text: str) -> None:
    spec = with_device(ContainerEdits(intel_rdt=IntelRdt(enable_cmt=True)))
    version.validate_version(replace(spec, version=text))


def test_cache_monitoring_of_old_is_refused_from_1_1_0() -> None:
    spec = with_device(ContainerEdits(intel_rdt=IntelRdt(enable_mbm=True)))
    with pytest.raises(VersionError, match=r"at most v1\.0\.0"):
        version.validate_version(replace(spec, version="1.1.0"))


_features = st.sampled_from([spec for spec, _ in FEATURES.values()])


def rank(spec: Spec) -> int:
    return version.KNOWN_VERSIONS.index(version.minimum_required(spec))


@given(_features, st.lists(_features))
def test_adding_devices_and_edits_never_lowers_the_minimum(spec: Spec, others: list[Spec]) -> None:
    more = replace(
        spec,
        devices=(*spec.devices, *(device for other in others for device in other.devices)),
        container_edits=sum(
            (other.container_edits for other in others), start=spec.container_edits
        ),
    )
    assert rank(more) >= max(
        rank(spec), *(rank(replace(o, kind="a/b", annotations={})) for o in (spec, *others))
    )


@given(_features)
def test_the_minimum_is_accepted_and_the_version_below_is_not(spec: Spec) -> None:
    minimum = rank(spec)
    assert version.problem(replace(spec, version=version.KNOWN_VERSIONS[minimum])) is None
    assert version.problem(replace(spec, version=version.KNOWN_VERSIONS[minimum - 1])) is not None
