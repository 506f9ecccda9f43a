# SPDX-License-Identifier: Apache-2.0
"""Feature gates: names, defaults, syntax, aggregates and dependencies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.gates import (
    AGGREGATES,
    KNOWN_FEATURES,
    Feature,
    FeatureGateError,
    FeatureGates,
    Stage,
)

ON = {
    Feature.IMEX_DNS_NAMES,
    Feature.CLIQUES,
    Feature.CRASH_ON_FABRIC_ERRORS,
    Feature.CONTEXTUAL_LOGGING,
    Feature.LOGGING_BETA,
}
ALPHA = [feature for feature, gate in KNOWN_FEATURES.items() if gate.stage is Stage.ALPHA]
BETA = [feature for feature, gate in KNOWN_FEATURES.items() if gate.stage is Stage.BETA]


def test_every_feature_has_a_stage_and_a_default() -> None:
    assert set(KNOWN_FEATURES) == set(Feature)


@pytest.mark.parametrize("feature", Feature)
def test_a_gate_that_is_not_set_has_the_default_of_the_reference_driver(feature: Feature) -> None:
    assert FeatureGates().is_enabled(feature) == (feature in ON)


@pytest.mark.parametrize("feature", Feature)
@pytest.mark.parametrize("on", [True, False])
def test_every_gate_can_be_enabled_and_disabled(feature: Feature, on: bool) -> None:
    assert FeatureGates.parse(f"{feature}={on}").is_enabled(feature) is on


@pytest.mark.parametrize("word", ["1", "t", "T", "TRUE", "true", "True"])
def test_every_text_for_true_is_accepted(word: str) -> None:
    assert FeatureGates.parse(f"MPSSupport={word}").is_enabled(Feature.MPS)


@pytest.mark.parametrize("word", ["0", "f", "F", "FALSE", "false", "False"])
def test_every_text_for_false_is_accepted(word: str) -> None:
    assert not FeatureGates.parse(f"ComputeDomainCliques={word}").is_enabled(Feature.CLIQUES)


def test_blanks_and_empty_settings_are_ignored() -> None:
    gates = FeatureGates.parse(" MPSSupport = true ,,DynamicMIG=true,")
    assert gates.is_enabled(Feature.MPS)
    assert gates.is_enabled(Feature.DYNAMIC_MIG)


def test_the_last_of_two_settings_counts() -> None:
    assert not FeatureGates.parse("MPSSupport=true,MPSSupport=false").is_enabled(Feature.MPS)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Nope=true", "unrecognized feature gate: Nope"),
        ("mpssupport=true", "unrecognized feature gate: mpssupport"),
        ("MPSSupport", "missing bool value for MPSSupport"),
        (" ", "missing bool value for "),
        (
            "MPSSupport=maybe",
            "invalid value of MPSSupport=maybe, err: strconv.ParseBool: "
            'parsing "maybe": invalid syntax',
        ),
        ("Nope=true,MPSSupport", "missing bool value for MPSSupport"),
    ],
)
def test_an_invalid_text_is_refused_with_the_error_of_kubernetes(text: str, sentence: str) -> None:
    with pytest.raises(FeatureGateError) as caught:
        FeatureGates.parse(text)
    assert str(caught.value) == sentence


def test_an_invalid_text_changes_nothing() -> None:
    gates = FeatureGates.parse("MPSSupport=true")
    with pytest.raises(FeatureGateError):
        gates.merged("DynamicMIG=true,Nope=true")
    assert not gates.is_enabled(Feature.DYNAMIC_MIG)
    assert gates.merged("DynamicMIG=true").is_enabled(Feature.DYNAMIC_MIG)


def test_gates_merge_one_by_one() -> None:
    gates = FeatureGates.parse("MPSSupport=true,DynamicMIG=true").merged("DynamicMIG=false")
    assert gates.is_enabled(Feature.MPS)
    assert not gates.is_enabled(Feature.DYNAMIC_MIG)


@pytest.mark.parametrize("text", ["AllAlpha=true,DynamicMIG=false", "DynamicMIG=false,AllAlpha=1"])
def test_a_named_gate_takes_precedence_over_an_aggregate_in_either_order(text: str) -> None:
    gates = FeatureGates.parse(text)
    assert [feature for feature in ALPHA if not gates.is_enabled(feature)] == [Feature.DYNAMIC_MIG]


def test_an_aggregate_does_not_change_what_an_earlier_one_set() -> None:
    gates = FeatureGates.parse("AllAlpha=true").merged("AllAlpha=false")
    assert all(gates.is_enabled(feature) for feature in ALPHA)


def test_all_beta_false_leaves_contextual_logging_enabled() -> None:
    gates = FeatureGates.parse("AllBeta=false")
    assert [feature for feature in BETA if gates.is_enabled(feature)] == [
        Feature.CONTEXTUAL_LOGGING
    ]


def test_all_alpha_alone_is_a_valid_setting() -> None:
    assert FeatureGates.parse("AllAlpha=true").problems() == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "DynamicMIG=true,PassthroughSupport=true",
        "DynamicMIG=true,NVMLDeviceHealthCheck=true",
        "DynamicMIG=true,MPSSupport=true",
        "PassthroughSupport=true,NVMLDeviceHealthCheck=true",
        "DeviceMetadata=true",
        "FabricManagerPartitioning=true,PassthroughSupport=true",
        "ComputeDomainCliques=false,IMEXDaemonsWithDNSNames=false",
        "ComputeDomainCliques=false",
    ],
)
def test_gates_that_conflict_on_a_single_gpu_only_may_be_combined(text: str) -> None:
    assert FeatureGates.parse(text).problems() == ()


def test_the_gate_of_a_feature_that_a_release_lacks_has_no_effect_and_is_named() -> None:
    given = FeatureGates.parse("MPSSupport=true,DRAListTypeAttributes=true")
    gates = given.without({Feature.MPS, Feature.TIME_SLICING, Feature.CLIQUES})
    assert not gates.is_available(Feature.MPS)
    assert not gates.is_enabled(Feature.MPS)
    assert gates.is_enabled(Feature.LIST_ATTRIBUTES)
    assert gates.without_effect() == (Feature.MPS,), "not what is on by default, or off"
    assert gates.as_map() == given.as_map(), "what was set stays to be seen"
    assert given.without_effect() == ()


def test_features_stay_unavailable_when_more_gates_are_set() -> None:
    gates = FeatureGates().without({Feature.MPS}).merged("AllAlpha=true")
    assert gates.without_effect() == (Feature.MPS,)
    assert gates.without({Feature.DYNAMIC_MIG}).without_effect() == (
        Feature.DYNAMIC_MIG,
        Feature.MPS,
    )


def test_a_missing_dependency_is_a_problem() -> None:
    assert FeatureGates.parse("IMEXDaemonsWithDNSNames=false").problems() == (
        "feature gate ComputeDomainCliques requires IMEXDaemonsWithDNSNames to also be enabled",
    )


def test_the_map_has_every_gate_and_both_aggregates_sorted_by_name() -> None:
    names = list(FeatureGates().as_map())
    assert names == sorted([*Feature, *AGGREGATES])
    assert FeatureGates().as_map()["AllAlpha"] is False


def test_the_help_has_the_stage_and_the_default_of_a_gate() -> None:
    lines = FeatureGates().help_lines()
    assert "ComputeDomainCliques=true|false (BETA - default=true)" in lines
    assert "AllAlpha=true|false (ALPHA - default=false)" in lines
    assert list(lines) == sorted(lines)


settings = st.dictionaries(st.sampled_from([*Feature, *AGGREGATES]), st.booleans())


@given(settings, settings)
def test_the_text_of_the_explicit_settings_parses_to_the_same_gates(
    first: dict[str, bool], second: dict[str, bool]
) -> None:
    gates = FeatureGates()
    for chosen in (first, second):
        gates = gates.merged(",".join(f"{name}={on}" for name, on in chosen.items()))
    assert FeatureGates.parse(gates.explicit_text()).as_map() == gates.as_map()
