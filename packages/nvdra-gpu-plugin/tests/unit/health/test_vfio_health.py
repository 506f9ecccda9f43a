# SPDX-License-Identifier: Apache-2.0
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from nvdra_gpu_plugin.health import vfio_health
from nvdra_gpu_plugin.health.vfio_health import (
    KINDS,
    PCI_SILENT,
    PCIE_ERRORS_KEY,
    PCIE_LINK_KEY,
    PHASES,
    Fault,
    Phase,
    Sign,
    VfioHealth,
)
from nvdra_gpu_plugin.passthrough.pci_health import PciLook

BEGIN = datetime(2026, 8, 1, tzinfo=UTC)
WELL = PciLook(is_silent=False, lanes=16, full_lanes=16, fatal_errors=5)
SILENT = PciLook(is_silent=True, fatal_errors=5)
COLD = PciLook(fatal_errors=5)
NARROW = WELL._replace(lanes=4)
SILENT_TAINT = ("gpu.nvidia.com/gpu-lost", PCI_SILENT, "NoSchedule")
ERRORS_TAINT = ("gpu.nvidia.com/pcie-fatal-errors", "", "NoSchedule")
LINK_TAINT = ("gpu.nvidia.com/pcie-link", "x4-of-x16", "None")


def errors(count: int, look: PciLook = WELL) -> PciLook:
    return look._replace(fatal_errors=count)


def after(*looks: tuple[float, PciLook], health: VfioHealth | None = None) -> VfioHealth:
    """The health after looks, each so many seconds after the begin."""
    for seconds, look in looks:
        health = vfio_health.after_look(health, look, BEGIN + timedelta(seconds=seconds))
    assert health is not None
    return health


def keys(
    health: VfioHealth, *, knows_none: bool = True, effect: str = "NoSchedule"
) -> list[tuple[str, str, str]]:
    found = vfio_health.taints(health, knows_none, effect)
    return [(taint.key, taint.value or "", taint.effect) for taint in found]


def test_the_table_says_what_each_look_makes_of_each_phase() -> None:
    assert set(PHASES) == set(product(Phase, Sign))
    assert set(KINDS) == set(Fault)


def test_a_gpu_that_answers_has_no_taint() -> None:
    assert after((0, WELL), (10, WELL)).faults == {}


def test_a_gpu_is_lost_when_two_looks_get_no_answer() -> None:
    suspected = after((0, WELL), (10, SILENT))
    assert (keys(suspected), suspected.changes_soon) == ([], True)
    lost = after((11, SILENT), health=suspected)
    assert keys(lost) == [SILENT_TAINT]
    (taint,) = vfio_health.taints(lost, knows_none=False)
    assert taint.time_added == BEGIN + timedelta(seconds=10)
    assert not lost.changes_soon


def test_a_look_without_an_answer_between_others_is_nothing() -> None:
    health = after((0, WELL), (10, SILENT), (11, WELL), (21, SILENT))
    assert keys(health) == []


def test_a_gpu_that_was_silent_from_the_begin_is_lost_as_well() -> None:
    assert keys(after((0, SILENT), (1, SILENT))) == [SILENT_TAINT]


def test_a_gpu_that_falls_asleep_before_a_second_look_is_not_suspected_any_more() -> None:
    asleep = after((0, NARROW), (1, COLD))
    assert (asleep.faults, asleep.changes_soon) == ({}, False)


def test_only_a_fault_that_keeps_pods_away_is_worth_waking_a_gpu() -> None:
    assert not after((0, NARROW), (10, NARROW)).needs_answer
    assert after((0, WELL), (10, SILENT)).needs_answer
    assert after((0, errors(0)), (10, errors(1))).needs_answer
    assert not after((0, WELL)).needs_answer


def test_a_gpu_is_well_after_it_has_answered_for_ten_seconds() -> None:
    lost = after((0, SILENT), (1, SILENT))
    healing = after((20, WELL), (29.9, WELL), health=lost)
    assert (keys(healing), healing.changes_soon) == ([SILENT_TAINT], True)
    assert after((30, WELL), health=healing).faults == {}


def test_a_gpu_that_comes_and_goes_stays_lost() -> None:
    health = after((0, SILENT), (1, SILENT), (20, WELL), (25, SILENT), (26, WELL), (35, WELL))
    assert keys(health) == [SILENT_TAINT]
    assert after((36, WELL), health=health).faults == {}


def test_a_gpu_in_d3cold_is_as_it_was() -> None:
    lost = after((0, SILENT), (1, SILENT))
    assert after((100, COLD), (200, COLD), health=lost) == lost
    healing = after((300, WELL), health=lost)
    assert after((310, COLD), health=healing).faults == {}


def test_the_time_of_a_heal_begins_anew_when_the_clock_was_set_back() -> None:
    healing = after((0, SILENT), (1, SILENT), (3600, WELL))
    back = after((100, WELL), health=healing)
    assert keys(after((109, WELL), health=back)) == [SILENT_TAINT]
    assert after((110, WELL), health=back).faults == {}


def test_errors_of_before_do_not_count() -> None:
    assert keys(after((0, errors(7)), (10, errors(7)))) == []


def test_a_fatal_error_is_a_taint_at_once_and_for_ten_minutes() -> None:
    ill = after((0, errors(7)), (10, errors(8)))
    assert keys(ill) == [ERRORS_TAINT]
    healing = after((20, errors(8)), (619, errors(8)), health=ill)
    assert (keys(healing), healing.changes_soon) == ([ERRORS_TAINT], False)
    assert after((620, errors(8)), health=healing).faults == {}


def test_the_ten_minutes_begin_with_the_last_error() -> None:
    ill = after((0, errors(0)), (10, errors(1)), (20, errors(1)), (500, errors(2)))
    later = after((510, errors(2)), (1109, errors(2)), health=ill)
    assert keys(later) == [ERRORS_TAINT]
    assert after((1110, errors(2)), health=later).faults == {}


def test_errors_are_not_over_while_the_gpu_is_silent_or_not_asked() -> None:
    ill = after((0, errors(0)), (10, errors(1)))
    silent = after((20, errors(1, SILENT)), (3600, errors(1, COLD)), health=ill)
    assert ERRORS_TAINT in keys(silent)


def test_an_error_is_seen_while_the_gpu_sleeps_or_is_silent() -> None:
    for look in (COLD, SILENT):
        assert ERRORS_TAINT in keys(after((0, errors(1)), (10, errors(2, look))))


def test_a_counter_that_begins_anew_counts_from_nothing() -> None:
    assert keys(after((0, errors(7)), (10, errors(0)))) == []
    assert keys(after((0, errors(7)), (10, errors(2)))) == [ERRORS_TAINT]


def test_a_kernel_that_does_not_count_for_a_while_is_no_begin() -> None:
    without = WELL._replace(fatal_errors=None)
    assert keys(after((0, without), (10, errors(9)))) == []
    assert keys(after((0, errors(1)), (10, without), (20, errors(2)))) == [ERRORS_TAINT]


def test_a_link_without_all_its_lanes_keeps_nobody_away() -> None:
    narrow = after((0, NARROW), (10, NARROW))
    assert keys(narrow) == [LINK_TAINT]
    assert keys(narrow, knows_none=False) == []
    assert keys(narrow, effect="NoExecute") == [LINK_TAINT]
    wide = after((20, WELL), (30, WELL), health=narrow)
    assert wide.faults == {}


def test_a_link_is_as_it_was_seen_last_while_the_gpu_sleeps() -> None:
    narrow = after((0, NARROW), (10, NARROW._replace(lanes=8)), (20, COLD))
    assert keys(narrow) == [("gpu.nvidia.com/pcie-link", "x8-of-x16", "None")]


@pytest.mark.parametrize("lanes", [16, 32])
def test_a_link_with_as_many_lanes_as_it_can_have_is_well(lanes: int) -> None:
    wide = WELL._replace(lanes=lanes)
    assert after((0, wide), (10, wide)).faults == {}


def test_several_faults_have_a_taint_each_with_the_effect_that_is_configured() -> None:
    health = after((0, errors(0, NARROW)), (1, errors(1, NARROW)), (2, SILENT), (3, SILENT))
    found = keys(health, effect="NoExecute")
    assert [key for key, _, _ in found] == [SILENT_TAINT[0], PCIE_ERRORS_KEY, PCIE_LINK_KEY]
    assert [effect for _, _, effect in found] == ["NoExecute", "NoExecute", "None"]


def test_what_is_written_is_read_as_it_was() -> None:
    health = after((0, errors(0, NARROW)), (1, errors(1, NARROW)), (2, SILENT))
    assert VfioHealth.model_validate_json(health.model_dump_json()) == health
