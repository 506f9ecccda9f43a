# SPDX-License-Identifier: Apache-2.0
"""When NVML is opened again."""

import pytest
from nvdra_gpu_plugin.hardware import nvml_reopen_policy
from nvdra_gpu_plugin.hardware.nvml_reopen_policy import Action, Attempts, SessionFacts

GOOD = SessionFacts()
BROKEN = GOOD._replace(do_all_work=False)
MISSING = GOOD._replace(has_all=False)
OVERDUE = GOOD._replace(has_overdue=True, do_all_work=False)
OTHER_FILES = GOOD._replace(is_current=False)
OF_NO_USE = GOOD._replace(is_useful=False)

TABLE = {
    # found, seconds since the last attempt, former attempts for broken and for missing GPUs
    (GOOD, 7200, 0, 0): Action.KEEP,
    (OF_NO_USE, 0, 0, 0): Action.OPEN,
    (OF_NO_USE._replace(has_overdue=True), 0, 9, 9): Action.OPEN,
    (OVERDUE, 7200, 0, 0): Action.KEEP,
    (OTHER_FILES._replace(has_overdue=True), 7200, 0, 0): Action.KEEP,
    (OTHER_FILES, 0, 0, 0): Action.REOPEN,
    (BROKEN, 59, 0, 0): Action.KEEP,
    (BROKEN, 60, 0, 0): Action.REOPEN,
    (BROKEN, 119, 1, 0): Action.KEEP,
    (BROKEN, 120, 1, 0): Action.REOPEN,
    (BROKEN, 3599, 99, 0): Action.KEEP,
    (BROKEN, 3600, 99, 0): Action.REOPEN,
    (MISSING, 9, 0, 0): Action.KEEP,
    (MISSING, 10, 0, 0): Action.REOPEN,
    (MISSING, 59, 0, 1): Action.KEEP,
    (MISSING, 60, 0, 1): Action.REOPEN,
    (MISSING, 180, 0, 2): Action.REOPEN,
    (MISSING, 7200, 0, 3): Action.KEEP,
    (BROKEN._replace(has_all=False), 10, 1, 0): Action.REOPEN,
    (BROKEN._replace(has_all=False), 120, 1, 3): Action.REOPEN,
}


@pytest.mark.parametrize(("state", "action"), TABLE.items())
def test_nvml_is_opened_again_when_another_session_may_be_better(
    state: tuple[SessionFacts, float, int, int], action: Action
) -> None:
    found, passed_s, for_broken, for_missing = state
    attempts = Attempts(50.0, 100.0, for_broken, for_missing)
    plan = nvml_reopen_policy.plan(found, attempts, 100.0 + passed_s)
    assert plan.action is action
    assert (plan.begun == plan.attempts) == (action is not Action.REOPEN or not found.is_current)


def test_an_attempt_counts_for_what_it_was_due_for_once_it_has_begun() -> None:
    attempts, neither = Attempts(for_broken=1, for_missing=1), BROKEN._replace(has_all=False)
    for seconds, counted in {60: (1, 2), 120: (2, 2)}.items():
        plan = nvml_reopen_policy.plan(neither, attempts, seconds)
        assert (plan.begun.for_broken, plan.begun.for_missing) == counted
        assert plan.attempts == attempts, "it is repeated if calls in progress prevent it"


def test_gpus_that_work_again_are_tried_as_if_for_the_first_time() -> None:
    attempts = Attempts(for_broken=5, for_missing=3)
    for found, left in {GOOD: (0, 0), BROKEN: (5, 0), MISSING: (0, 3), OTHER_FILES: (0, 0)}.items():
        kept = nvml_reopen_policy.plan(found, attempts, 0.0).attempts
        assert (kept.for_broken, kept.for_missing) == left
    assert nvml_reopen_policy.plan(OVERDUE, attempts, 0.0).attempts == attempts
