# SPDX-License-Identifier: Apache-2.0
"""The status of a domain, its conditions with reasons, and the Events about it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.ids import CliqueID, NodeName
from nvdra_api.meta import Condition
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_api.v1beta1.compute_domain import ComputeDomainStatus, ConditionType
from nvdra_cd_controller import status
from nvdra_cd_controller.members import Member
from nvdra_cd_controller.status import ConditionReason, StatusInputs
from nvdra_runtime.computedomain.imex_links import ImexLinks
from nvdra_testing.control_plane import domain_values
from nvdra_testing.control_plane.domain_values import CLIQUE, OTHER_CLIQUE

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TAKEN = PermanentError(Reason.NAME_TAKEN, "a template of that name is there", "rename one")
VANISHED = PermanentError(Reason.API_UNAVAILABLE, "PATCH /x: 404")
UNREACHED = RetryableError(Reason.API_UNAVAILABLE, "no answer")


def ready(node: str, index: int = 0, clique: CliqueID = CLIQUE) -> Member:
    return Member(NodeName(node), "10.4.0.1", clique, index, is_ready=True)


def starting(node: str, index: int = 0) -> Member:
    return replace(ready(node, index), is_ready=False, not_ready_because="IMEX is starting")


def not_joined(node: str, problem: str = "") -> Member:
    return Member(
        NodeName(node), is_listed=False, not_ready_because=problem or "no pod", pod_problem=problem
    )


def status_of(inputs: StatusInputs, num_nodes: int = 0) -> ComputeDomainStatus:
    wanted = status.desired(domain_values.domain(num_nodes), inputs, NOW)
    return ComputeDomainStatus.model_validate(wanted)


def condition(found: ComputeDomainStatus, kind: ConditionType) -> Condition:
    one = found.condition(kind)
    assert one is not None
    return one


def with_status(stored: ComputeDomainStatus) -> ComputeDomain:
    return domain_values.domain().model_copy(update={"status": stored})


@pytest.mark.parametrize(
    ("members", "num_nodes", "is_ready", "reason", "counts"),
    [
        ([], 0, True, ConditionReason.NO_NODES_YET, (0, 0)),
        ([], 2, False, ConditionReason.NODES_MISSING, (0, 2)),
        ([ready("a")], 2, False, ConditionReason.NODES_MISSING, (1, 2)),
        ([ready("a"), ready("b", 1)], 2, True, ConditionReason.ALL_NODES_READY, (2, 2)),
        ([ready("a"), ready("b", 1)], 1, True, ConditionReason.ALL_NODES_READY, (2, 2)),
        ([ready("a"), starting("b", 1)], 0, False, ConditionReason.DAEMONS_NOT_READY, (1, 2)),
        ([ready("a"), starting("b", 1)], 4, False, ConditionReason.DAEMONS_NOT_READY, (1, 4)),
        ([ready("a"), not_joined("b")], 0, False, ConditionReason.DAEMONS_NOT_READY, (1, 2)),
    ],
)
def test_a_domain_is_ready_when_every_member_is_and_there_are_enough(
    members: list[Member],
    num_nodes: int,
    is_ready: bool,
    reason: ConditionReason,
    counts: tuple[int, int],
) -> None:
    found = status_of(StatusInputs(members=tuple(members)), num_nodes)

    assert found.status == ("Ready" if is_ready else "NotReady")
    assert condition(found, ConditionType.READY).status == str(is_ready)
    assert condition(found, ConditionType.READY).reason == reason
    assert (found.ready_nodes, found.expected_nodes) == counts


def test_members_that_are_not_ready_are_named_with_the_cause() -> None:
    found = status_of(StatusInputs(members=(ready("a"), starting("b", 1), not_joined("c"))))

    message = condition(found, ConditionType.READY).message
    assert message == "1 of 3 nodes are ready; b: IMEX is starting; c: no pod"


def test_only_the_first_of_many_are_named() -> None:
    found = status_of(StatusInputs(members=tuple(not_joined(f"n{i}") for i in range(9))))
    assert condition(found, ConditionType.READY).message.endswith("n4: no pod; and 4 more")


def test_a_member_that_has_not_joined_is_counted_and_not_listed() -> None:
    found = status_of(StatusInputs(members=(ready("a", 3), not_joined("b"))))

    assert [(node.name, node.index, node.status) for node in found.nodes] == [("a", 3, "Ready")]
    assert found.expected_nodes == 2


def test_an_empty_list_of_nodes_is_omitted() -> None:
    for members in ((), (not_joined("b"),)):
        assert "nodes" not in status.desired(
            domain_values.domain(1), StatusInputs(members=members), NOW
        )
    assert "nodes" in status.desired(
        domain_values.domain(1), StatusInputs(members=(ready("a"),)), NOW
    )


def test_nodes_without_a_clique_do_not_count_as_one() -> None:
    members = (ready("a"), ready("b", 0, OTHER_CLIQUE), ready("c", -1, CliqueID("")))
    assert status_of(StatusInputs(members=members)).cliques == 2


def test_the_list_has_the_maximum_length_of_the_crd_and_all_nodes_are_counted() -> None:
    found = status_of(
        StatusInputs(members=tuple(ready(f"n{i:04}", i) for i in range(3000)), max_nodes=9999)
    )

    assert len(found.nodes) == 2048
    assert (found.ready_nodes, found.expected_nodes) == (3000, 3000)


def test_a_host_managed_domain_is_ready_whatever_num_nodes_says() -> None:
    found = status_of(StatusInputs(is_host_managed=True), num_nodes=4)

    assert found.status == "Ready"
    assert condition(found, ConditionType.READY).reason == ConditionReason.HOST_MANAGED
    assert found.expected_nodes == 0


def test_a_taken_name_makes_the_domain_not_accepted_and_not_ready() -> None:
    found = status_of(StatusInputs(failure=TAKEN, all_children_exist=False))

    for kind in (ConditionType.ACCEPTED, ConditionType.CHILDREN_READY, ConditionType.READY):
        assert condition(found, kind).status == "False"
        assert condition(found, kind).reason == "NameTaken"
    message = condition(found, ConditionType.ACCEPTED).message
    assert message == "a template of that name is there; rename one"


@pytest.mark.parametrize("failure", [UNREACHED, VANISHED])
def test_a_failed_call_does_not_make_the_domain_not_accepted(failure: DriverError) -> None:
    found = status_of(StatusInputs(failure=failure))

    assert condition(found, ConditionType.ACCEPTED).status == "True"
    assert condition(found, ConditionType.CHILDREN_READY).reason == "ApiUnavailable"
    assert found.status == "NotReady"


@pytest.mark.parametrize("all_children_exist", [True, False])
def test_a_failed_write_of_a_child_does_not_make_nodes_unready(*, all_children_exist: bool) -> None:
    inputs = StatusInputs((ready("a"),), UNREACHED, all_children_exist=all_children_exist)
    found = status_of(inputs)

    assert found.status == "Ready"
    assert condition(found, ConditionType.READY).reason == ConditionReason.ALL_NODES_READY
    assert condition(found, ConditionType.CHILDREN_READY).reason == "ApiUnavailable"


def test_nodes_that_daemons_wrote_keep_the_order_in_which_they_are_stored() -> None:
    def listed(node: str) -> Member:
        return replace(ready(node), written_status="Ready")

    domain = domain_values.domain(
        status={"status": "Ready", "nodes": [{"name": "c"}, {"name": "a"}]}
    )
    inputs = StatusInputs(members=(listed("a"), listed("b"), listed("c")))
    nodes = status.desired(domain, inputs, NOW)["nodes"]
    assert [each["name"] for each in nodes] == ["c", "a", "b"]


def test_children_that_do_not_exist_yet_are_missing() -> None:
    found = status_of(StatusInputs(all_children_exist=False))

    assert found.status == "NotReady"
    assert condition(found, ConditionType.READY).reason == ConditionReason.CHILDREN_MISSING


def test_a_deletion_says_what_it_waits_for() -> None:
    found = status_of(
        StatusInputs(members=(ready("a"),), waits_for="deletion of DaemonSet nvdra/x")
    )

    assert found.status == "NotReady"
    ready_ = condition(found, ConditionType.READY)
    assert (ready_.reason, ready_.message) == (
        "Deleting",
        "waiting for deletion of DaemonSet nvdra/x",
    )


@pytest.mark.parametrize(
    ("members", "reason", "says"),
    [
        ([ready("a"), ready("b", 1)], ConditionReason.AS_EXPECTED, "nothing"),
        (
            [ready("a"), not_joined("b", "ErrImagePull: no such image")],
            ConditionReason.DAEMON_PODS_FAILING,
            "b: ErrImagePull: no such image",
        ),
        (
            [ready("a", 1), ready("b", 1)],
            ConditionReason.INDEX_CONFLICT,
            "a shares index 1 of clique",
        ),
        ([ready("a", 2)], ConditionReason.INDEX_CONFLICT, "a has index 2, the maximum is 1"),
        (
            [ready("a", 0), ready("b", 1), not_joined("c")],
            ConditionReason.CLIQUE_FULL,
            "2 daemons, which is the maximum",
        ),
        (
            [ready("a", 0, CLIQUE), ready("b", 0, OTHER_CLIQUE)],
            ConditionReason.AS_EXPECTED,
            "nothing",
        ),
        (
            [ready("a", -1, CliqueID("")), ready("b", -1, CliqueID(""))],
            ConditionReason.AS_EXPECTED,
            "",
        ),
    ],
)
def test_what_needs_attention_is_degraded(
    members: list[Member], reason: ConditionReason, says: str
) -> None:
    found = status_of(StatusInputs(members=tuple(members), max_nodes=2))

    degraded = condition(found, ConditionType.DEGRADED)
    assert degraded.reason == reason
    assert degraded.status == str(reason is not ConditionReason.AS_EXPECTED)
    assert says in degraded.message


def test_a_condition_keeps_its_transition_time_until_it_changes() -> None:
    first = status_of(StatusInputs(members=(starting("a"),)))
    later = NOW + timedelta(hours=1)

    same = status.desired(with_status(first), StatusInputs(members=(starting("b"),)), later)
    turned = status.desired(with_status(first), StatusInputs(members=(ready("a"),)), later)

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
INPUTS = st.builds(
    StatusInputs,
    members=MEMBERS,
    failure=st.sampled_from([None, TAKEN, UNREACHED]),
    all_children_exist=st.booleans(),
    waits_for=st.sampled_from(["", "something"]),
    is_host_managed=st.booleans(),
    max_nodes=st.integers(1, 9),
)


@given(INPUTS, st.integers(0, 9))
def test_a_status_that_is_stored_is_not_written_again_however_much_later(
    inputs: StatusInputs, num_nodes: int
) -> None:
    domain = domain_values.domain(num_nodes)
    wanted = status.desired(domain, inputs, NOW)
    stored = domain.model_copy(update={"status": ComputeDomainStatus.model_validate(wanted)})

    assert status.desired(stored, inputs, NOW + timedelta(days=1)) == wanted
    assert list(status.events(stored.status, stored.status)) == []


@given(INPUTS, st.integers(0, 9))
def test_the_conditions_agree_with_the_status(inputs: StatusInputs, num_nodes: int) -> None:
    found = status_of(inputs, num_nodes)
    is_ready = condition(found, ConditionType.READY).status == "True"

    assert is_ready == (found.status == "Ready")
    if is_ready:
        assert condition(found, ConditionType.ACCEPTED).status == "True"
        has_children = condition(found, ConditionType.CHILDREN_READY).status == "True"
        assert has_children or inputs.members
        if not inputs.is_host_managed:
            assert found.ready_nodes == found.expected_nodes
    assert {len(each.reason) > 0 for each in found.conditions} == {True}


def test_a_problem_causes_one_event() -> None:
    quiet = status_of(StatusInputs(members=(starting("a"),)))
    failing = status_of(StatusInputs(members=(not_joined("a", "ErrImagePull: x"),)))

    assert [(n.type, n.reason) for n in status.events(quiet, failing)] == [
        ("Warning", "DaemonPodsFailing")
    ]
    assert list(status.events(failing, failing)) == []
    assert list(status.events(failing, quiet)) == []


def test_a_domain_that_is_not_accepted_causes_an_event() -> None:
    refused = status_of(StatusInputs(failure=TAKEN))
    emitted = list(status.events(ComputeDomainStatus(), refused))

    assert emitted == [("Warning", "NameTaken", "a template of that name is there; rename one")]


def test_a_domain_that_is_formed_causes_an_event() -> None:
    empty, formed = status_of(StatusInputs()), status_of(StatusInputs(members=(ready("a"),)))

    assert list(status.events(ComputeDomainStatus(), empty)) == []
    assert list(status.events(empty, formed)) == [
        ("Normal", "AllNodesReady", "1 of 1 node is ready")
    ]
    assert status.is_formed(formed)
    assert not status.is_formed(empty)


def unlinked(node: str, index: int, broken: dict[str, str], **more: Any) -> Member:
    links = ImexLinks({NodeName(to): word for to, word in broken.items()}, **more)
    return replace(ready(node, index), links=links)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        (
            [unlinked("a", 0, {"b": "VERSION_MISMATCH"}), unlinked("b", 1, {"a": "!V!"})],
            "b cannot talk to a (!V!); a cannot talk to b (VERSION_MISMATCH)",
        ),
        (
            [*(unlinked(f"n{at}", at, {"z": "INVALID"}) for at in range(8)), ready("z", 8)],
            "n0, n1, n2, n3, n4 and 3 more cannot talk to z (INVALID)",
        ),
        (
            [unlinked("a", 0, {}, failure="nvidia-imex-ctl -N gave no answer"), ready("b", 1)],
            "the connections of a are not known: nvidia-imex-ctl -N gave no answer",
        ),
        ([unlinked("a", 0, {"b": "RECOVERING"}), starting("b", 1)], ""),
        ([unlinked("a", 0, {"gone": "RECOVERING"})], ""),
        ([ready("a"), ready("b", 1)], ""),
    ],
)
def test_nodes_that_are_not_connected_degrade_the_domain_and_leave_it_as_ready_as_it_is(
    members: list[Member], text: str
) -> None:
    found = status_of(StatusInputs(members=tuple(members)))
    degraded = condition(found, ConditionType.DEGRADED)
    reason = ConditionReason.IMEX_LINKS_BROKEN if text else ConditionReason.AS_EXPECTED
    assert (degraded.status, degraded.reason) == (str(bool(text)), reason)
    if text:
        assert degraded.message == text
        assert [each.reason for each in status.events(ComputeDomainStatus(), found)][:1] == [reason]
    is_ready = all(member.is_ready for member in members)
    assert (found.status == "Ready") is is_ready


def test_a_connection_to_a_host_of_no_member_degrades_the_domain_before_all_others() -> None:
    place = "compute-domain-daemon-be54fbcbf4-0001"
    links = ImexLinks({NodeName("b"): "INVALID"}, strangers={place: ""})
    members = (replace(ready("a", 0), links=links), ready("b", 1))
    found = status_of(StatusInputs(members=members))
    degraded = condition(found, ConditionType.DEGRADED)
    assert degraded.reason == ConditionReason.IMEX_LINKS_MISDIRECTED
    assert degraded.message == (
        f"the nvidia-imex of a is connected to a host that is no member of the domain, as {place}: "
        "it is signalled to end the connection; if this stays, delete the daemon's pod"
    )
    assert found.status == "Ready"


def test_a_daemon_that_is_silent_for_a_minute_degrades_the_domain() -> None:
    began = NOW - timedelta(seconds=status.SILENT_AFTER_S)
    silent = replace(starting("a"), silent_since=began.isoformat())
    found = status_of(StatusInputs(members=(silent,)))
    assert condition(found, ConditionType.DEGRADED).reason == ConditionReason.DAEMON_PODS_FAILING
    assert status.silence_due_in_s((silent,), NOW) is None

    soon = replace(silent, silent_since=(began + timedelta(seconds=5)).isoformat())
    found = status_of(StatusInputs(members=(soon,)))
    assert condition(found, ConditionType.DEGRADED).reason == ConditionReason.AS_EXPECTED
    assert status.silence_due_in_s((soon, ready("b")), NOW) == 5.0


JOIN_ANOTHER = (
    "delete the daemon's pod, and then the workload's pods on the node; the next ones join the "
    "clique of the node"
)
JOIN_AGAIN = (
    "see the Events of the Node, and `nvidia-smi -q` on it, section Fabric; if they do not join "
    "the fabric again, drain the node and reboot it"
)


@pytest.mark.parametrize(
    ("cliques", "message"),
    [
        (
            ["c.5"],
            f"the GPUs of a are in the clique c.5 now, and its daemon has joined {CLIQUE}: "
            f"{JOIN_ANOTHER}",
        ),
        (
            [""],
            f"the GPUs of a are in no NVLink clique now, and its daemon has joined {CLIQUE}: "
            f"{JOIN_AGAIN}",
        ),
        (
            ["", "c.5"],
            f"the GPUs of b are in the clique c.5 now, and its daemon has joined {CLIQUE}: "
            f"{JOIN_ANOTHER}; the GPUs of a are in no NVLink clique now, and its daemon has joined "
            f"{CLIQUE}: {JOIN_AGAIN}",
        ),
    ],
    ids=["another clique", "none", "both"],
)
def test_gpus_that_have_left_their_daemons_clique_degrade_the_domain(
    cliques: Sequence[str], message: str
) -> None:
    moved = tuple(
        replace(ready(node, index), moved_to=CliqueID(clique))
        for index, (node, clique) in enumerate(zip("ab", cliques, strict=False))
    )
    found = status_of(StatusInputs(members=(*moved, ready("c", 2))))
    degraded = condition(found, ConditionType.DEGRADED)
    assert degraded.reason == ConditionReason.CLIQUE_CHANGED
    assert degraded.message == message
    reasons = [each.reason for each in status.events(ComputeDomainStatus(), found)]
    assert ConditionReason.CLIQUE_CHANGED in reasons
