# SPDX-License-Identifier: Apache-2.0
"""What a wait for a daemon does next."""

from dataclasses import replace

import pytest
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_cd_plugin.daemon.readiness import (
    NOTIFY_AFTER_S,
    DaemonClaimFailure,
    DaemonReadiness,
    Step,
    WaitProgress,
)

BEGAN, DEADLINE = 100.0, 145.0
READY = DaemonReadiness("")
STARTS = DaemonReadiness("it has not joined the domain yet")
UNVERIFIED = replace(STARTS, is_unverified=True)
DEAD = replace(STARTS, is_outdated=True)
REFUSED = DaemonClaimFailure(
    ClaimRef("nvdra", "daemon", ClaimUID("u")),
    (),
    RetryableError(Reason.FABRIC_ERROR, "no", "wait"),
)
QUEUED = replace(REFUSED, is_final=False)
NEW = WaitProgress.of(BEGAN, DEADLINE, may_notify=True)
SILENT = replace(NEW, may_notify=False)


@pytest.mark.parametrize(
    ("progress", "state", "failure", "now", "step"),
    [
        (NEW, READY, REFUSED, BEGAN + 50, Step.GIVE),
        (NEW, STARTS, None, BEGAN, Step.WAIT),
        (NEW, UNVERIFIED, None, BEGAN, Step.READ_ADDRESS),
        (replace(NEW, address_due=BEGAN + 1), UNVERIFIED, None, BEGAN, Step.WAIT),
        (NEW, STARTS, REFUSED, BEGAN, Step.TELL_FAILURE),
        (replace(NEW, told_failure=REFUSED), STARTS, REFUSED, BEGAN, Step.WAIT),
        (NEW, STARTS, QUEUED, BEGAN, Step.WAIT),
        (SILENT, STARTS, REFUSED, BEGAN, Step.WAIT),
        (NEW, STARTS, None, BEGAN + NOTIFY_AFTER_S, Step.TELL_WAIT),
        (SILENT, STARTS, None, BEGAN + NOTIFY_AFTER_S, Step.TELL_WAIT),
    ],
)
def test_the_next_step_follows_from_the_state_the_failure_and_the_time(
    progress: WaitProgress,
    state: DaemonReadiness,
    failure: DaemonClaimFailure | None,
    now: float,
    step: Step,
) -> None:
    assert progress.next(state, failure, now)[0] is step


def test_the_pod_is_read_when_the_user_is_notified_and_just_before_the_end() -> None:
    progress, read = NEW, []
    for now in range(100, 146):
        step, progress = progress.next(STARTS, None, float(now))
        read += [now] if step is Step.TELL_WAIT else []
    assert read == [115, 144]
    short = WaitProgress.of(BEGAN, BEGAN + 5, may_notify=True)
    assert short.lookups_at == (104.0,)


def test_the_pod_of_an_unknown_writer_is_read_once_a_second() -> None:
    step, progress = NEW.next(UNVERIFIED, None, BEGAN)
    assert step is Step.READ_ADDRESS
    assert progress.next(UNVERIFIED, None, BEGAN + 0.9)[0] is Step.WAIT
    assert progress.due(UNVERIFIED, BEGAN) == BEGAN + 1
    assert progress.next(UNVERIFIED, None, BEGAN + 1)[0] is Step.READ_ADDRESS


def test_a_failure_is_looked_into_once() -> None:
    step, progress = NEW.next(STARTS, REFUSED, BEGAN)
    assert step is Step.TELL_FAILURE
    assert progress.next(STARTS, REFUSED, BEGAN)[0] is Step.WAIT


def test_nothing_is_looked_at_again_without_need() -> None:
    assert NEW.due(STARTS, BEGAN) == BEGAN + NOTIFY_AFTER_S
    assert replace(NEW, lookups_at=()).due(STARTS, BEGAN) is None
    assert NEW.due(DEAD, BEGAN) == BEGAN + 0.25
