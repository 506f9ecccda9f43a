# SPDX-License-Identifier: Apache-2.0
"""From looks at a GPU and the XIDs that it reports to the taints of its device."""

from datetime import UTC, datetime, timedelta

import pytest
from nvdra_api.resource.slices import DeviceTaint
from nvdra_gpu_plugin.devices.gpu_loss import GpuLoss
from nvdra_gpu_plugin.health import gpu_health
from nvdra_gpu_plugin.health.failed_looks import FailedLook
from nvdra_gpu_plugin.health.gpu_health import WELL, GpuHealth, Look
from nvdra_gpu_plugin.health.recovery_actions import NOT_OF_THE_GPU, RecoveryAction

START = datetime(2026, 8, 7, 16, 0, 54, 250_000, tzinfo=UTC)
RESET, NOTHING, UNKNOWN = Look(recovery_action=1), Look(recovery_action=0), Look()
IMEX = Look(recovery_action=RecoveryAction.RECOVER_IMEX_DOMAIN)
LOST, NEEDS_RESET, ERRORS_ONLY = map(Look, GpuLoss)
UNANSWERED = FailedLook("unknown")
ERRORS = Look(has_uncorrected_errors=True)
FABRIC = Look(recovery_action=0, fabric="route-unhealthy")
PENDING, FAILED = (Look(recovery_action=0, remapping=each) for each in ("pending", "failed"))


Step = int | Look | FailedLook


def after(*steps: Step, health: GpuHealth = WELL, ignored: tuple[int, ...] = ()) -> GpuHealth:
    """XIDs and looks, one a second."""
    for seconds, step in enumerate(steps):
        now = START + timedelta(seconds=seconds)
        if isinstance(step, FailedLook):
            health = gpu_health.after_failed_look(health, now)
        elif isinstance(step, Look):
            health = gpu_health.after_look(health, step, now, ignored)
        else:
            health = gpu_health.after_xid(health, step, now, ignored)
    return health


def taints(health: GpuHealth) -> list[str]:
    found = gpu_health.taints(health, is_monitored=True, knows_none=True)
    return [f"{taint.key.partition('/')[2]}={taint.value}:{taint.effect}" for taint in found]


def test_a_taint_has_the_xid_and_the_time_to_the_second() -> None:
    assert gpu_health.taints(after(48, RESET), is_monitored=True, knows_none=True) == (
        DeviceTaint(
            key="gpu.nvidia.com/xid",
            value="48",
            effect="NoSchedule",
            time_added=datetime(2026, 8, 7, 16, 0, 55, tzinfo=UTC),
        ),
    )


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((), []),
        ((48,), []),  # what it means, the look says
        ((48, NOTHING), []),
        ((48, 154, NOTHING, RESET), ["xid=48:NoSchedule"]),  # the action follows the XID
        ((48, 45, 43, RESET), ["xid=48:NoSchedule"]),  # applications fail because of it
        ((13, UNKNOWN), []),
        ((109, UNKNOWN), ["xid=109:NoSchedule"]),
        ((109, NOTHING), []),
        ((48, 109, RESET), ["xid=48:NoSchedule"]),  # it follows from the other one
        ((63, UNKNOWN), ["xid=63:NoSchedule"]),  # a driver that cannot tell
        ((RESET,), ["xid=154:NoSchedule"]),  # the XID was missed
        ((RESET, RESET, 95, RESET), ["xid=95:NoSchedule"]),
        ((48, IMEX), ["fabric=recover-imex-domain:None"]),  # the domain's, not the GPU's
        ((IMEX._replace(fabric="failed"),), ["fabric=failed:NoSchedule"]),
        ((LOST,), ["gpu-lost=:NoSchedule"]),
        ((48, RESET, 79, LOST), ["gpu-lost=:NoSchedule", "xid=48:NoSchedule"]),
        ((NEEDS_RESET,), ["gpu-lost=reset-required:NoSchedule"]),
        ((48, RESET, ERRORS_ONLY), ["gpu-lost=nvml-errors:NoSchedule", "xid=48:NoSchedule"]),
        ((119, UNANSWERED), ["xid=119:NoSchedule"]),  # it may need a recovery
        ((119, NOTHING, UNANSWERED), ["xid=119:NoSchedule"]),  # the action may follow the XID
        ((63, *[NOTHING] * 6, UNANSWERED), []),  # NVML has wanted nothing done about it
        ((13, UNANSWERED), []),
        ((UNANSWERED,), []),
        ((48, RESET, UNANSWERED), ["xid=48:NoSchedule"]),
        ((ERRORS,), ["ecc=uncorrected:NoSchedule"]),
        # A row that waits to be remapped is that of a contained error; the GPU can be used.
        ((ERRORS._replace(remapping="pending"),), ["row-remapping=pending:None"]),
        (
            (ERRORS._replace(remapping="failed"),),
            ["ecc=uncorrected:NoSchedule", "row-remapping=failed:NoSchedule"],
        ),
        ((94, 63, ERRORS._replace(remapping="pending")), ["row-remapping=pending:None"]),
        (
            (95, 63, ERRORS._replace(remapping="pending")),  # not contained
            ["row-remapping=pending:None", "xid=95:NoSchedule"],
        ),
        ((ERRORS._replace(recovery_action=0),), []),  # the driver can tell, and asks for nothing
        ((PENDING,), ["row-remapping=pending:None"]),  # it works until its next reset
        ((PENDING, FAILED), ["row-remapping=failed:NoSchedule"]),
        ((NOTHING._replace(fabric="failed"),), ["fabric=failed:NoSchedule"]),
        (
            (NOTHING._replace(fabric="incorrect-configuration"),),
            ["fabric=incorrect-configuration:NoSchedule"],
        ),
        ((NOTHING._replace(fabric="access-timeout"),), ["fabric=access-timeout:None"]),
        ((NOTHING._replace(fabric="degraded-bandwidth"),), ["fabric=degraded-bandwidth:None"]),
        (
            (48, FAILED._replace(recovery_action=1)),
            ["row-remapping=failed:NoSchedule", "xid=48:NoSchedule"],
        ),
    ],
)
def test_what_a_gpu_is_tainted_with(steps: tuple[Step, ...], expected: list[str]) -> None:
    assert taints(after(*steps)) == expected


@pytest.mark.parametrize("action", [*sorted({*RecoveryAction} - {*NOT_OF_THE_GPU}), 8])
def test_what_nvml_asks_for_is_known_with_the_taint(action: int) -> None:
    health = after(48, Look(recovery_action=action), UNANSWERED, NOTHING)
    assert taints(health) == ["xid=48:NoSchedule"]
    assert health.recovery is not None
    assert health.recovery.action == action


def test_an_action_that_changes_keeps_the_time_of_the_taint() -> None:
    health = after(48, RESET, Look(recovery_action=2))
    assert health.recovery is not None
    assert health.recovery.action == RecoveryAction.NODE_REBOOT
    assert health.recovery.since == START + timedelta(seconds=1)


def test_an_xid_that_needs_nothing_is_settled_for_the_next_process_too() -> None:
    known = gpu_health.with_ignored(after(63, *[NOTHING] * 6), ())
    assert taints(after(UNANSWERED, health=known)) == []
    assert taints(after(UNANSWERED, health=gpu_health.with_ignored(after(63), ()))) != []


def test_an_ignored_xid_counts_for_nothing_while_looks_fail() -> None:
    assert taints(after(119, UNANSWERED, ignored=(119,))) == []


def test_a_taint_of_an_unanswered_look_goes_when_nvml_wants_nothing_done() -> None:
    ill = after(119, *[UNANSWERED] * 100)
    assert taints(after(*[NOTHING] * 10, health=ill)) == ["xid=119:NoSchedule"]
    assert taints(after(*[NOTHING] * 11, health=ill)) == []


def test_a_gpu_that_has_had_errors_and_answers_again_was_not_reset() -> None:
    ill = after(63, UNKNOWN, ERRORS_ONLY, *[UNKNOWN] * 20)
    assert taints(ill) == ["xid=63:NoSchedule"]
    assert taints(after(63, UNKNOWN, NEEDS_RESET, *[UNKNOWN] * 20)) == []


def test_an_administrator_can_ignore_an_xid_although_nvml_asks_for_a_recovery() -> None:
    assert taints(after(48, RESET, RESET, ignored=(48,))) == []
    assert taints(after(48, UNKNOWN, ignored=(48,))) == []
    assert taints(after(48, RESET, 95, RESET, ignored=(48,))) == ["xid=95:NoSchedule"]
    assert taints(after(154, RESET, ignored=(154,))) == []


@pytest.mark.parametrize("xid", [48, 94])
def test_an_administrator_can_ignore_memory_errors_where_the_driver_cannot_tell(xid: int) -> None:
    assert taints(after(ERRORS, ignored=(xid,))) == []
    assert taints(gpu_health.with_ignored(after(ERRORS), {xid})) == []
    assert taints(after(95, ERRORS, ignored=(xid,))) == ["xid=95:NoSchedule"]
    assert taints(after(ERRORS, ignored=(62,))) == ["ecc=uncorrected:NoSchedule"]


def test_an_ignored_xid_is_ignored_for_as_long_as_nvml_asks_for_a_recovery() -> None:
    steps: list[int | Look] = [48, *[RESET] * 70]
    assert taints(after(*steps, ignored=(48,))) == []
    assert taints(after(*steps, LOST, *[RESET] * 12, ignored=(48,))) == []
    assert taints(after(*steps, 95, RESET, ignored=(48,))) == ["xid=95:NoSchedule"]
    assert taints(after(*steps, NOTHING, RESET, ignored=(48,))) == ["xid=154:NoSchedule"]
    assert after(*steps, NOTHING, ignored=(48,)) == WELL


def test_an_ignored_xid_is_ignored_too_after_an_administrator_has_reset_nothing() -> None:
    ignoring = gpu_health.after_administration(after(48, RESET, ignored=(48,)))
    assert taints(after(*[RESET] * 70, health=ignoring, ignored=(48,))) == []


def test_the_driver_may_take_its_time_until_it_asks_for_the_recovery_of_an_ignored_xid() -> None:
    assert taints(after(95, RESET, 48, *[NOTHING] * 12, RESET, ignored=(48,))) == []


def test_who_ignores_154_ignores_a_recovery_that_no_xid_is_known_for() -> None:
    assert taints(after(RESET, ignored=(154,))) == []
    assert taints(after(48, RESET, ignored=(154,))) == ["xid=48:NoSchedule"]


@pytest.mark.parametrize(
    ("steps", "ignored_before", "ignored", "expected"),
    [
        ((48, RESET), (), (48,), []),
        ((48, RESET), (48,), (), ["xid=48:NoSchedule"]),
        ((48, RESET), (48,), (48, 62), []),
        ((95, 48, RESET), (), (48,), []),  # the later one was taken for the cause
        ((95, 48, RESET), (48,), (48,), ["xid=95:NoSchedule"]),
        ((13, RESET), (13,), (), ["xid=154:NoSchedule"]),  # never a cause
        ((RESET,), (), (154,), []),
        ((LOST,), (), (48,), ["gpu-lost=:NoSchedule"]),
    ],
)
def test_a_list_of_ignored_xids_that_was_changed_applies_to_what_is_known(
    steps: tuple[int | Look, ...],
    ignored_before: tuple[int, ...],
    ignored: tuple[int, ...],
    expected: list[str],
) -> None:
    before = after(*steps, ignored=ignored_before)
    health = gpu_health.with_ignored(before, ignored)
    last = steps[-1]
    assert isinstance(last, Look)
    assert taints(after(last, health=health, ignored=ignored)) == expected
    assert set(taints(health)) <= set(expected), "also before the GPU is looked at"


def test_a_taint_that_outlived_its_cause_goes_for_good_when_its_xid_is_ignored() -> None:
    """An administrator had the GPU, and reset nothing."""
    before = gpu_health.after_administration(after(48, RESET))
    health = gpu_health.with_ignored(before, {48})
    assert taints(after(RESET, health=health, ignored=(48,))) == []


def test_an_xid_that_needed_nothing_is_not_the_reason_of_what_comes_later() -> None:
    assert taints(after(63, *[NOTHING] * 70, RESET)) == ["xid=154:NoSchedule"]
    assert taints(after(48, *[NOTHING] * 70, RESET, ignored=(48,))) == ["xid=154:NoSchedule"]


@pytest.mark.parametrize(
    "ill",
    [
        (48, RESET),
        (LOST,),
        (NEEDS_RESET,),
        (ERRORS_ONLY,),
        (ERRORS,),
        (PENDING,),
        (FAILED,),
        (FABRIC,),
    ],
)
def test_a_taint_goes_when_the_gpu_has_been_well_for_ten_seconds(
    ill: tuple[Step, ...],
) -> None:
    tainted = taints(after(*ill))
    assert taints(after(*ill, *[NOTHING] * 10)) == tainted
    assert taints(after(*ill, *[NOTHING] * 11)) == []
    assert after(*ill, *[NOTHING] * 11) == WELL


def test_a_gpu_that_comes_and_goes_stays_tainted_since_the_beginning() -> None:
    health = after(LOST, *[NOTHING] * 8, LOST, *[NOTHING] * 8, LOST)
    assert health.loss is not None
    assert health.loss.since == START


def test_a_driver_that_cannot_tell_is_believed_after_an_administrator_had_the_gpu() -> None:
    ill = after(63, UNKNOWN)
    assert taints(after(*[UNKNOWN] * 100, health=ill)) == ["xid=63:NoSchedule"]
    assert taints(after(*[UNKNOWN] * 12, health=gpu_health.after_administration(ill))) == []


def test_an_administrator_who_resets_nothing_heals_nothing_where_the_driver_can_tell() -> None:
    ill = gpu_health.after_administration(after(48, RESET))
    assert taints(after(*[RESET] * 12, health=ill)) == ["xid=48:NoSchedule"]


def test_a_lost_gpu_that_is_back_was_reset() -> None:
    assert taints(after(79, UNKNOWN, LOST, *[UNKNOWN] * 12)) == []
    assert taints(after(79, LOST, *[UNKNOWN] * 20)) == []  # no look between XID and loss
    assert taints(after(79, LOST, UNKNOWN, 63, UNKNOWN)) == [
        "gpu-lost=:NoSchedule",
        "xid=63:NoSchedule",
    ]


def test_a_gpu_that_reports_nothing_says_so_where_the_effect_is_known() -> None:
    for knows_none, expected in ((True, ("gpu.nvidia.com/unmonitored",)), (False, ())):
        found = gpu_health.taints(WELL, is_monitored=False, knows_none=knows_none)
        assert tuple(taint.key for taint in found if taint.effect == "None") == expected


def test_what_is_kept_for_the_next_process_is_read_as_it_was_written() -> None:
    ill = after(48, RESET, 62, LOST, 79, LOST, ignored=(62,))
    assert GpuHealth.model_validate_json(ill.model_dump_json()) == ill


def test_an_operator_may_choose_that_the_pods_of_a_gpu_that_is_not_well_are_deleted() -> None:
    health = after(48, RESET._replace(remapping="pending"))
    found = gpu_health.taints(health, is_monitored=False, knows_none=True, effect="NoExecute")
    assert [(taint.key.partition("/")[2], taint.effect) for taint in found] == [
        ("row-remapping", "None"),
        ("unmonitored", "None"),
        ("xid", "NoExecute"),
    ]


def test_where_the_effect_none_is_not_known_there_are_no_taints_with_it() -> None:
    assert gpu_health.taints(after(PENDING), is_monitored=False, knows_none=False) == ()
    assert len(gpu_health.taints(after(FAILED), is_monitored=False, knows_none=False)) == 1


def test_a_clock_that_is_set_back_delays_healing_by_seconds_and_not_by_hours() -> None:
    health = after(LOST, NOTHING)
    earlier = START - timedelta(hours=3)
    health = gpu_health.after_look(health, NOTHING, earlier)
    assert taints(health) == ["gpu-lost=:NoSchedule"]
    assert taints(gpu_health.after_look(health, NOTHING, earlier + gpu_health.HEALS_AFTER)) == []


def test_an_xid_of_before_the_clock_was_set_back_is_not_the_reason_of_what_comes_later() -> None:
    earlier = START - timedelta(hours=3)
    health = gpu_health.after_look(after(48), NOTHING, earlier)
    assert taints(gpu_health.after_look(health, RESET, earlier)) == ["xid=154:NoSchedule"]
