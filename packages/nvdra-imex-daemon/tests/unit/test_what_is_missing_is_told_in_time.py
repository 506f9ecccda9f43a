"""What the entry says, when words may be written, when people are told."""

from datetime import UTC, datetime

from nvdra_api.types.errors import PermanentError, Reason, RetryableError
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
