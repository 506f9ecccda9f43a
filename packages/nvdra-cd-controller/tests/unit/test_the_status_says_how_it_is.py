"""Members and children → status, conditions with reasons, and what is worth an Event."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import cd_objects
import pytest
from cd_objects import CLIQUE, OTHER_CLIQUE
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.types.domains import (
    ComputeDomain,
    ComputeDomainStatus,
    Condition,
    ConditionType,
)
from nvdra_api.types.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.types.ids import CliqueID, NodeName
from nvdra_cd_controller import status
from nvdra_cd_controller.members import Member
from nvdra_cd_controller.status import Because, Facts

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TAKEN = PermanentError(Reason.NAME_TAKEN, "a template of that name is there", "rename one")
VANISHED = PermanentError(Reason.API_UNAVAILABLE, "PATCH /x: 404")
UNREACHED = RetryableError(Reason.API_UNAVAILABLE, "no answer")


def ready(node: str, index: int = 0, clique: CliqueID = CLIQUE) -> Member:
    return Member(NodeName(node), "10.4.0.1", clique, index, is_ready=True)


def starting(node: str, index: int = 0) -> Member:
    return replace(ready(node, index), is_ready=False, lacks="IMEX is starting")


def coming(node: str, trouble: str = "") -> Member:
    return Member(NodeName(node), is_listed=False, lacks=trouble or "no pod", trouble=trouble)


def told(facts: Facts, num_nodes: int = 0) -> ComputeDomainStatus:
    wanted = status.wanted(cd_objects.domain(num_nodes), facts, NOW)
    return ComputeDomainStatus.model_validate(wanted)


def condition(found: ComputeDomainStatus, kind: ConditionType) -> Condition:
    one = found.condition(kind)
    assert one is not None
    return one


def with_status(stored: ComputeDomainStatus) -> ComputeDomain:
    return cd_objects.domain().model_copy(update={"status": stored})


@pytest.mark.parametrize(
    ("members", "num_nodes", "is_ready", "reason", "counts"),
    [
        ([], 0, True, Because.NO_NODES_YET, (0, 0)),
        ([], 2, False, Because.NODES_MISSING, (0, 2)),
        ([ready("a")], 2, False, Because.NODES_MISSING, (1, 2)),
        ([ready("a"), ready("b", 1)], 2, True, Because.ALL_NODES_READY, (2, 2)),
        ([ready("a"), ready("b", 1)], 1, True, Because.ALL_NODES_READY, (2, 2)),
        ([ready("a"), starting("b", 1)], 0, False, Because.DAEMONS_NOT_READY, (1, 2)),
        ([ready("a"), starting("b", 1)], 4, False, Because.DAEMONS_NOT_READY, (1, 4)),
        ([ready("a"), coming("b")], 0, False, Because.DAEMONS_NOT_READY, (1, 2)),
    ],
)
def test_a_domain_is_ready_when_every_member_is_and_there_are_enough(
    members: list[Member],
    num_nodes: int,
    is_ready: bool,
    reason: Because,
    counts: tuple[int, int],
) -> None:
    found = told(Facts(members=tuple(members)), num_nodes)

    assert found.status == ("Ready" if is_ready else "NotReady")
    assert condition(found, ConditionType.READY).status == str(is_ready)
    assert condition(found, ConditionType.READY).reason == reason
    assert (found.ready_nodes, found.expected_nodes) == counts


def test_who_is_not_ready_is_named_with_what_it_lacks() -> None:
    found = told(Facts(members=(ready("a"), starting("b", 1), coming("c"))))

    message = condition(found, ConditionType.READY).message
    assert message == "1 of 3 nodes are ready; b: IMEX is starting; c: no pod"


def test_of_many_the_first_are_named() -> None:
    found = told(Facts(members=tuple(coming(f"n{i}") for i in range(9))))
    assert condition(found, ConditionType.READY).message.endswith("n4: no pod; and 4 more")


def test_who_has_not_joined_is_counted_and_not_listed() -> None:
    found = told(Facts(members=(ready("a", 3), coming("b"))))

    assert [(node.name, node.index, node.status) for node in found.nodes] == [("a", 3, "Ready")]
    assert found.expected_nodes == 2


def test_a_list_of_nobody_is_not_there_at_all() -> None:
    for members in ((), (coming("b"),)):
        assert "nodes" not in status.wanted(cd_objects.domain(1), Facts(members=members), NOW)
    assert "nodes" in status.wanted(cd_objects.domain(1), Facts(members=(ready("a"),)), NOW)


def test_cliques_are_counted_without_nodes_that_have_none() -> None:
    members = (ready("a"), ready("b", 0, OTHER_CLIQUE), ready("c", -1, CliqueID("")))
    assert told(Facts(members=members)).cliques == 2


def test_the_list_ends_where_the_definition_does_and_the_counters_go_on() -> None:
    found = told(Facts(members=tuple(ready(f"n{i:04}", i) for i in range(3000)), max_nodes=9999))

    assert len(found.nodes) == 2048
    assert (found.ready_nodes, found.expected_nodes) == (3000, 3000)


def test_a_host_managed_domain_is_ready_whatever_num_nodes_says() -> None:
    found = told(Facts(is_host_managed=True), num_nodes=4)

    assert found.status == "Ready"
    assert condition(found, ConditionType.READY).reason == Because.HOST_MANAGED
    assert found.expected_nodes == 0


def test_a_taken_name_is_told_and_the_domain_is_not_ready() -> None:
    found = told(Facts(failure=TAKEN, are_children_there=False))

    for kind in (ConditionType.ACCEPTED, ConditionType.CHILDREN_READY, ConditionType.READY):
        assert condition(found, kind).status == "False"
        assert condition(found, kind).reason == "NameTaken"
    message = condition(found, ConditionType.ACCEPTED).message
    assert message == "a template of that name is there; rename one"


@pytest.mark.parametrize("failure", [UNREACHED, VANISHED])
def test_a_call_that_failed_does_not_refuse_the_domain(failure: DriverError) -> None:
    found = told(Facts(failure=failure))

    assert condition(found, ConditionType.ACCEPTED).status == "True"
    assert condition(found, ConditionType.CHILDREN_READY).reason == "ApiUnavailable"
    assert found.status == "NotReady"


def test_children_that_are_being_made_are_missing() -> None:
    found = told(Facts(are_children_there=False))

    assert found.status == "NotReady"
    assert condition(found, ConditionType.READY).reason == Because.CHILDREN_MISSING


def test_a_deletion_says_what_it_waits_for() -> None:
    found = told(Facts(members=(ready("a"),), waits_for="DaemonSet nvdra/x to go"))

    assert found.status == "NotReady"
    ready_ = condition(found, ConditionType.READY)
    assert (ready_.reason, ready_.message) == (
        "Deleting",
        "waiting for DaemonSet nvdra/x to go",
    )


@pytest.mark.parametrize(
    ("members", "reason", "says"),
    [
        ([ready("a"), ready("b", 1)], Because.AS_EXPECTED, "nothing"),
        (
            [ready("a"), coming("b", "ErrImagePull: no such image")],
            Because.DAEMON_PODS_FAILING,
            "b: ErrImagePull: no such image",
        ),
        ([ready("a", 1), ready("b", 1)], Because.INDEX_CONFLICT, "a has index 1 of clique"),
        ([ready("a", 2)], Because.INDEX_CONFLICT, "a has index 2, the last is 1"),
        ([ready("a", 0), ready("b", 1), coming("c")], Because.CLIQUE_FULL, "2 daemons, as many"),
        ([ready("a", 0, CLIQUE), ready("b", 0, OTHER_CLIQUE)], Because.AS_EXPECTED, "nothing"),
        ([ready("a", -1, CliqueID("")), ready("b", -1, CliqueID(""))], Because.AS_EXPECTED, ""),
    ],
)
def test_what_a_person_must_look_at_is_degraded(
    members: list[Member], reason: Because, says: str
) -> None:
    found = told(Facts(members=tuple(members), max_nodes=2))

    degraded = condition(found, ConditionType.DEGRADED)
    assert degraded.reason == reason
    assert degraded.status == str(reason is not Because.AS_EXPECTED)
    assert says in degraded.message


def test_a_condition_keeps_its_time_until_it_turns() -> None:
    first = told(Facts(members=(starting("a"),)))
    later = NOW + timedelta(hours=1)

    same = status.wanted(with_status(first), Facts(members=(starting("b"),)), later)
    turned = status.wanted(with_status(first), Facts(members=(ready("a"),)), later)

    def times(wanted: dict[str, Any]) -> dict[str, str]:
        return {each["type"]: each["lastTransitionTime"] for each in wanted["conditions"]}

    assert set(times(same).values()) == {"2026-01-01T12:00:00Z"}
    assert times(turned)["Ready"] == "2026-01-01T13:00:00Z"
    assert times(turned)["Accepted"] == "2026-01-01T12:00:00Z"


MEMBERS = st.lists(
    st.builds(
        Member,
        st.sampled_from([NodeName(f"n{i}") for i in range(8)]),
        st.just("10.0.0.1"),
        st.sampled_from([CLIQUE, OTHER_CLIQUE, CliqueID("")]),
        st.integers(-1, 9),
        is_ready=st.booleans(),
        is_listed=st.booleans(),
    ),
    unique_by=lambda member: member.node,
).map(tuple)
FACTS = st.builds(
    Facts,
    members=MEMBERS,
    failure=st.sampled_from([None, TAKEN, UNREACHED]),
    are_children_there=st.booleans(),
    waits_for=st.sampled_from(["", "something"]),
    is_host_managed=st.booleans(),
    max_nodes=st.integers(1, 9),
)


@given(FACTS, st.integers(0, 9))
def test_a_status_that_is_stored_is_not_written_again_however_much_later(
    facts: Facts, num_nodes: int
) -> None:
    domain = cd_objects.domain(num_nodes)
    wanted = status.wanted(domain, facts, NOW)
    stored = domain.model_copy(update={"status": ComputeDomainStatus.model_validate(wanted)})

    assert status.wanted(stored, facts, NOW + timedelta(days=1)) == wanted
    assert list(status.news(stored.status, stored.status)) == []


@given(FACTS, st.integers(0, 9))
def test_the_conditions_agree_with_the_status(facts: Facts, num_nodes: int) -> None:
    found = told(facts, num_nodes)
    is_ready = condition(found, ConditionType.READY).status == "True"

    assert is_ready == (found.status == "Ready")
    if is_ready:
        assert condition(found, ConditionType.ACCEPTED).status == "True"
        assert condition(found, ConditionType.CHILDREN_READY).status == "True"
        if not facts.is_host_managed:
            assert found.ready_nodes == found.expected_nodes
    assert {len(each.reason) > 0 for each in found.conditions} == {True}


def test_trouble_is_news_once() -> None:
    quiet = told(Facts(members=(starting("a"),)))
    failing = told(Facts(members=(coming("a", "ErrImagePull: x"),)))

    assert [(n.type, n.reason) for n in status.news(quiet, failing)] == [
        ("Warning", "DaemonPodsFailing")
    ]
    assert list(status.news(failing, failing)) == []
    assert list(status.news(failing, quiet)) == []


def test_a_refused_domain_is_news_from_the_start() -> None:
    refused = told(Facts(failure=TAKEN))
    news = list(status.news(ComputeDomainStatus(), refused))

    assert news == [("Warning", "NameTaken", "a template of that name is there; rename one")]


def test_it_is_news_that_a_domain_has_formed_and_not_that_it_is_empty() -> None:
    empty, formed = told(Facts()), told(Facts(members=(ready("a"),)))

    assert list(status.news(ComputeDomainStatus(), empty)) == []
    assert list(status.news(empty, formed)) == [("Normal", "AllNodesReady", "1 of 1 node is ready")]
    assert status.is_formed(formed)
    assert not status.is_formed(empty)
