"""What the entry says, when words may be written, when people are told."""

from datetime import UTC, datetime

import pytest
from nvdra_api.types.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_imex_daemon import standing
from nvdra_imex_daemon.entries import Report
from nvdra_imex_daemon.standing import PATIENCE_S, SETTLE_S, Complaint

FORMING = RetryableError(Reason.DAEMON_NOT_READY, "nvidia-imex says\nINITIALIZING", "wait")
MISSING = PermanentError(Reason.IMEX_BINARY_MISSING, "nvidia-imex cannot be run", "install it")
AT = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)


def test_an_entry_says_on_one_line_what_is_missing() -> None:
    assert standing.report(None) == Report(is_ready=True)
    assert standing.report(FORMING).message == "nvidia-imex says INITIALIZING"
    assert standing.report(MISSING).message == "ImexBinaryMissing: nvidia-imex cannot be run"


def test_readiness_is_written_at_once_and_words_wait_for_others() -> None:
    old, new = Report(is_ready=False, message="a"), Report(is_ready=False, message="b")
    ready = Report(is_ready=True)
    assert standing.held_back_s(None, new, 0.0, 0.0) == 0.0
    assert standing.held_back_s(old, ready, 10.0, 10.0) == 0.0
    assert standing.held_back_s(ready, new, 10.0, 10.0) == 0.0
    assert standing.held_back_s(old, old, 10.0, 10.0) == 0.0
    assert standing.held_back_s(old, new, 10.0, 10.5) == SETTLE_S - 0.5
    assert standing.held_back_s(old, new, 10.0, 10.0 + SETTLE_S) == 0.0


def test_an_api_server_that_is_away_for_a_moment_is_nothing_to_complain_of() -> None:
    away = RetryableError(Reason.API_UNAVAILABLE, "no answer in time")
    assert Complaint().after(away, AT, 100.0).due_s(100.0) == PATIENCE_S
    full = RetryableError(Reason.DOMAIN_FULL, "no room")
    assert Complaint().after(full, AT, 100.0).due_s(100.0) == 0.0


def test_a_daemon_that_starts_is_nothing_to_complain_of_before_its_time() -> None:
    complaint = Complaint().after(FORMING, AT, 100.0)
    assert complaint.due_s(100.0) == PATIENCE_S
    assert complaint.due_s(100.0 + PATIENCE_S) == 0.0
    assert complaint.since == AT


def test_what_needs_a_person_is_told_at_once_and_once() -> None:
    complaint = Complaint().after(MISSING, AT, 100.0)
    assert complaint.due_s(100.0) == 0.0
    assert complaint.said().due_s(200.0) is None
    assert complaint.said().after(FORMING, AT, 200.0).due_s(200.0) == 0.0


def test_since_is_when_it_began_whatever_is_missing_meanwhile() -> None:
    later = AT.replace(hour=4)
    complaint = Complaint().after(FORMING, AT, 100.0).after(MISSING, later, 900.0)
    assert complaint.since == AT
    assert complaint.after(None, later, 901.0) == Complaint()


CRASHED = RetryableError(Reason.DAEMON_NOT_READY, "nvidia-imex ended by itself", "see its output")


def says(word: str) -> RetryableError:
    return RetryableError(Reason.DAEMON_NOT_READY, f"nvidia-imex says {word}", "wait")


@pytest.mark.parametrize("failure", [None, CRASHED, MISSING])
def test_an_imex_that_is_ready_has_no_past(failure: DriverError | None) -> None:
    assert standing.with_past(None, failure) is None


@pytest.mark.parametrize("text", ["nvidia-imex says INITIALIZING", "nvidia-imex-ctl ended with 1"])
def test_one_that_starts_again_is_known_by_why_it_had_to(text: str) -> None:
    starting = RetryableError(Reason.DAEMON_NOT_READY, text, "wait")
    assert standing.with_past(starting, None) is starting
    assert standing.with_past(starting, CRASHED) is CRASHED


def test_one_that_has_started_again_says_also_what_it_waits_for() -> None:
    told = standing.with_past(says("WAITING_FOR_QUORUM"), CRASHED)
    assert told is not None
    assert told.message == ("nvidia-imex ended by itself; now nvidia-imex says WAITING_FOR_QUORUM")
    assert (told.reason, told.remedy) == (CRASHED.reason, CRASHED.remedy)


def test_what_was_missing_for_its_start_is_forgotten_once_it_has_started() -> None:
    waiting = says("WAITING_FOR_QUORUM")
    assert standing.with_past(waiting, MISSING) is waiting
