"""A status is late only if Kubernetes was not as late with what it follows from."""

import pytest
from nvdra_api import names
from nvdra_testing.random_domains.recording import Recording
from nvdra_testing.random_domains.timeline import Change

UID = "uid"
ALLOWED_S = 5.0


def recorded(told_at: float, counted_at: float) -> Recording:
    """A domain whose only daemon was Ready after 100 s, and deleted after 200 s."""
    seen = Recording()
    seen.names[UID] = "ring"
    seen.deleted[UID] = 200.0
    seen.true[UID].append(Change(100.0, frozenset({"node-1"})))
    seen.told[UID].append(Change(told_at, frozenset({"node-1"})))
    seen.counted[UID].append(Change(counted_at, frozenset({"0"})))
    return seen


@pytest.mark.parametrize(
    ("told_at", "counted_at", "is_late"),
    [(104.0, 100.5, False), (107.0, 100.5, True), (107.0, 103.0, False), (109.0, 103.0, True)],
)
def test_a_status_may_be_later_by_as_much_as_kubernetes_is(
    told_at: float, counted_at: float, is_late: bool
) -> None:
    seen = recorded(told_at, counted_at)
    assert bool(seen.untruths([], ALLOWED_S, is_beyond_delay=True)) == is_late
    assert bool(seen.untruths([], ALLOWED_S)) == (told_at > 105)


def test_the_pods_that_a_daemon_set_counts_are_noted_when_their_number_changes() -> None:
    seen = Recording()
    for ready in (0, 1, 1, 2):
        status = {"numberReady": ready}
        labels = {names.DOMAIN_LABEL: UID}
        seen.take_daemon_set("MODIFIED", {"metadata": {"labels": labels}, "status": status})
    seen.take_daemon_set("MODIFIED", {"metadata": {}, "status": {"numberReady": 7}})
    assert [len(each.nodes) for each in seen.counted[UID]] == [0, 1, 2]
    assert set(seen.counted) == {UID}
