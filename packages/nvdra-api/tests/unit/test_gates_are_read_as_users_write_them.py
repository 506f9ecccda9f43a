"""Feature gates: names, defaults, syntax, aggregates, what composes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.types.gates import AGGREGATES, GATES, Feature, GateError, Gates, Stage

ON = {
    Feature.IMEX_DNS_NAMES,
    Feature.CLIQUES,
    Feature.CRASH_ON_FABRIC_ERRORS,
    Feature.CONTEXTUAL_LOGGING,
    Feature.LOGGING_BETA,
}
ALPHA = [feature for feature, gate in GATES.items() if gate.stage is Stage.ALPHA]
BETA = [feature for feature, gate in GATES.items() if gate.stage is Stage.BETA]


def test_every_name_has_its_gate():
    assert set(GATES) == set(Feature)


@pytest.mark.parametrize("feature", Feature)
def test_a_gate_nobody_sets_has_the_reference_default(feature):
    assert Gates().is_on(feature) == (feature in ON)


@pytest.mark.parametrize("feature", Feature)
@pytest.mark.parametrize("on", [True, False])
def test_every_gate_can_be_switched_both_ways(feature, on):
    assert Gates.parse(f"{feature}={on}").is_on(feature) is on


@pytest.mark.parametrize("word", ["1", "t", "T", "TRUE", "true", "True"])
def test_every_word_for_true_is_understood(word):
    assert Gates.parse(f"MPSSupport={word}").is_on(Feature.MPS)


@pytest.mark.parametrize("word", ["0", "f", "F", "FALSE", "false", "False"])
def test_every_word_for_false_is_understood(word):
    assert not Gates.parse(f"ComputeDomainCliques={word}").is_on(Feature.CLIQUES)


def test_blanks_and_a_trailing_comma_do_no_harm():
    gates = Gates.parse(" MPSSupport = true ,,DynamicMIG=true,")
    assert gates.is_on(Feature.MPS)
    assert gates.is_on(Feature.DYNAMIC_MIG)


def test_of_two_settings_the_last_one_wins():
    assert not Gates.parse("MPSSupport=true,MPSSupport=false").is_on(Feature.MPS)


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
def test_a_text_that_cannot_be_understood_is_refused_in_known_words(text, sentence):
    with pytest.raises(GateError) as caught:
        Gates.parse(text)
    assert str(caught.value) == sentence


def test_a_refused_text_changes_nothing_and_later_texts_still_work():
    gates = Gates.parse("MPSSupport=true")
    with pytest.raises(GateError):
        gates.merged("DynamicMIG=true,Nope=true")
    assert not gates.is_on(Feature.DYNAMIC_MIG)
    assert gates.merged("DynamicMIG=true").is_on(Feature.DYNAMIC_MIG)


def test_gates_merge_one_by_one():
    gates = Gates.parse("MPSSupport=true,DynamicMIG=true").merged("DynamicMIG=false")
    assert gates.is_on(Feature.MPS)
    assert not gates.is_on(Feature.DYNAMIC_MIG)


@pytest.mark.parametrize("text", ["AllAlpha=true,DynamicMIG=false", "DynamicMIG=false,AllAlpha=1"])
def test_a_gate_named_beats_the_aggregate_in_either_order(text):
    gates = Gates.parse(text)
    assert [feature for feature in ALPHA if not gates.is_on(feature)] == [Feature.DYNAMIC_MIG]


def test_a_later_aggregate_does_not_undo_an_earlier_one():
    gates = Gates.parse("AllAlpha=true").merged("AllAlpha=false")
    assert all(gates.is_on(feature) for feature in ALPHA)


def test_all_beta_off_leaves_contextual_logging_on():
    gates = Gates.parse("AllBeta=false")
    assert [feature for feature in BETA if gates.is_on(feature)] == [Feature.CONTEXTUAL_LOGGING]


def test_all_alpha_alone_is_a_set_that_can_start():
    assert Gates.parse("AllAlpha=true").problems() == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "DynamicMIG=true,PassthroughSupport=true",
        "DynamicMIG=true,NVMLDeviceHealthCheck=true",
        "DynamicMIG=true,MPSSupport=true",
        "PassthroughSupport=true,NVMLDeviceHealthCheck=true",
        "DeviceMetadata=true,PassthroughSupport=true",
        "FabricManagerPartitioning=true,PassthroughSupport=true",
        "ComputeDomainCliques=false,IMEXDaemonsWithDNSNames=false",
        "ComputeDomainCliques=false",
    ],
)
def test_gates_that_only_one_board_could_refuse_compose(text):
    assert Gates.parse(text).problems() == ()


def test_every_broken_rule_is_told():
    assert Gates.parse("IMEXDaemonsWithDNSNames=false,DeviceMetadata=true").problems() == (
        "feature gate ComputeDomainCliques requires IMEXDaemonsWithDNSNames to also be enabled",
        "feature gate DeviceMetadata requires PassthroughSupport to also be enabled",
    )


def test_the_map_has_every_gate_and_both_aggregates_in_sorted_order():
    names = list(Gates().as_map())
    assert names == sorted([*Feature, *AGGREGATES])
    assert Gates().as_map()["AllAlpha"] is False


def test_the_help_names_stage_and_default():
    lines = Gates().help_lines()
    assert "ComputeDomainCliques=true|false (BETA - default=true)" in lines
    assert "AllAlpha=true|false (ALPHA - default=false)" in lines
    assert list(lines) == sorted(lines)


settings = st.dictionaries(st.sampled_from([*Feature, *AGGREGATES]), st.booleans())


@given(settings, settings)
def test_what_is_shown_as_set_means_the_same_when_it_is_set(first, second):
    gates = Gates()
    for chosen in (first, second):
        gates = gates.merged(",".join(f"{name}={on}" for name, on in chosen.items()))
    assert Gates.parse(gates.explicit_text()).as_map() == gates.as_map()
