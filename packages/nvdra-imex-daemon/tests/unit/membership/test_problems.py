# SPDX-License-Identifier: Apache-2.0
"""The message of an entry, when it is written, and when people are told."""

from datetime import UTC, datetime

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_imex_daemon.membership import problems
from nvdra_imex_daemon.membership.entries import MemberStatus
from nvdra_imex_daemon.membership.problems import MESSAGE_INTERVAL_S, REPORT_AFTER_S, ProblemTracker

FORMING = RetryableError(Reason.DAEMON_NOT_READY, "nvidia-imex says\nINITIALIZING", "wait")
MISSING = PermanentError(Reason.IMEX_BINARY_MISSING, "nvidia-imex cannot be run", "install it")
AT = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)


def test_the_message_of_an_entry_is_no_longer_than_the_clique_accepts() -> None:
    lasting = RetryableError(Reason.DAEMON_NOT_READY, "x" * 5000, "wait")
    assert problems.member_status(lasting).message == "x" * 1024


def test_the_message_of_an_entry_is_one_line() -> None:
    assert problems.member_status(None) == MemberStatus(is_ready=True)
    assert problems.member_status(FORMING).message == "nvidia-imex says INITIALIZING"
    assert problems.member_status(MISSING).message == "ImexBinaryMissing: nvidia-imex cannot be run"


def test_a_change_of_readiness_is_written_at_once_and_of_the_message_later() -> None:
    old, new = MemberStatus(is_ready=False, message="a"), MemberStatus(is_ready=False, message="b")
    ready = MemberStatus(is_ready=True)
    assert problems.write_delay_s(None, new, 0.0, 0.0) == 0.0
    assert problems.write_delay_s(old, ready, 10.0, 10.0) == 0.0
    assert problems.write_delay_s(ready, new, 10.0, 10.0) == 0.0
    assert problems.write_delay_s(old, old, 10.0, 10.0) == 0.0
    assert problems.write_delay_s(old, new, 10.0, 10.5) == MESSAGE_INTERVAL_S - 0.5
    assert problems.write_delay_s(old, new, 10.0, 10.0 + MESSAGE_INTERVAL_S) == 0.0


def test_a_short_outage_of_the_api_server_is_not_reported() -> None:
    away = RetryableError(Reason.API_UNAVAILABLE, "no answer in time")
    assert ProblemTracker().updated(away, AT, 100.0).report_due_s(100.0) == REPORT_AFTER_S
    full = RetryableError(Reason.DOMAIN_FULL, "no room")
    assert ProblemTracker().updated(full, AT, 100.0).report_due_s(100.0) == 0.0


def test_a_starting_daemon_is_reported_only_after_a_while() -> None:
    complaint = ProblemTracker().updated(FORMING, AT, 100.0)
    assert complaint.report_due_s(100.0) == REPORT_AFTER_S
    assert complaint.report_due_s(100.0 + REPORT_AFTER_S) == 0.0
    assert complaint.since == AT


def test_a_permanent_error_is_reported_at_once_and_only_once() -> None:
    complaint = ProblemTracker().updated(MISSING, AT, 100.0)
    assert complaint.report_due_s(100.0) == 0.0
    assert complaint.marked_reported().report_due_s(200.0) is None
    assert complaint.marked_reported().updated(FORMING, AT, 200.0).report_due_s(200.0) == 0.0


def test_since_is_the_beginning_of_the_first_problem() -> None:
    later = AT.replace(hour=4)
    complaint = ProblemTracker().updated(FORMING, AT, 100.0).updated(MISSING, later, 900.0)
    assert complaint.since == AT
    assert complaint.updated(None, later, 901.0) == ProblemTracker()


CRASHED = RetryableError(Reason.DAEMON_NOT_READY, "nvidia-imex ended by itself", "see its output")


def says(word: str) -> RetryableError:
    return RetryableError(Reason.DAEMON_NOT_READY, f"nvidia-imex says {word}", "wait")


@pytest.mark.parametrize("failure", [None, CRASHED, MISSING])
def test_an_earlier_failure_is_forgotten_once_imex_is_ready(failure: DriverError | None) -> None:
    assert problems.with_earlier_failure(None, failure) is None


@pytest.mark.parametrize("text", ["nvidia-imex says INITIALIZING", "nvidia-imex-ctl ended with 1"])
def test_a_restarting_imex_shows_the_earlier_failure(text: str) -> None:
    starting = RetryableError(Reason.DAEMON_NOT_READY, text, "wait")
    assert problems.with_earlier_failure(starting, None) is starting
    assert problems.with_earlier_failure(starting, CRASHED) is CRASHED


def test_a_restarted_imex_shows_the_earlier_failure_and_what_it_waits_for() -> None:
    told = problems.with_earlier_failure(says("WAITING_FOR_RECOVERY"), CRASHED)
    assert told is not None
    words = "nvidia-imex ended by itself; now nvidia-imex says WAITING_FOR_RECOVERY"
    assert told.message == words
    assert (told.reason, told.remedy) == (CRASHED.reason, CRASHED.remedy)


def test_a_failed_start_is_forgotten_once_imex_has_started() -> None:
    waiting = says("WAITING_FOR_RECOVERY")
    assert problems.with_earlier_failure(waiting, MISSING) is waiting
