# SPDX-License-Identifier: Apache-2.0
"""Labels of the Node are written for the version that was read, and never over another domain's."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from nvdra_api import names
from nvdra_api.errors import DriverError, Reason, RetryableError
from nvdra_api.ids import CliqueID, DomainUID, NodeName
from nvdra_api.meta import JsonObject
from nvdra_cd_plugin.membership.node_labels import NodeLabels
from nvdra_testing import virtual_time
from nvdra_testing.faults import recorded_api
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

OURS = DomainUID("11111111-2222-3333-4444-555555555555")
THEIRS = DomainUID("99999999-2222-3333-4444-555555555555")
NODE = "/api/v1/nodes/node-1"
GET, PATCH = f"GET {NODE}", f"PATCH {NODE}"


@dataclass
class Node:
    """The Node.

    Attributes:
        between: The label that somebody else gives it between our read and our write; each once.
    """

    label: str | None = None
    between: list[str | None] = field(default_factory=list)
    version: int = 5
    is_deleted: bool = False

    def answer(self, request: Request) -> Answer:
        if self.is_deleted:
            return recorded_api.status(404, "NotFound")
        if request.line == GET:
            return 200, self.stored()
        assert request.line == PATCH
        if self.between:
            self.label, self.version = self.between.pop(0), self.version + 1
        metadata = request.body["metadata"]
        if metadata.get("resourceVersion", str(self.version)) != str(self.version):
            return recorded_api.status(409, "Conflict")
        if names.DOMAIN_LABEL in metadata["labels"]:
            self.label = metadata["labels"][names.DOMAIN_LABEL]
        return 200, self.stored()

    def stored(self) -> JsonObject:
        labels = {"kubernetes.io/hostname": "node-1"}
        if self.label is not None:
            labels[names.DOMAIN_LABEL] = self.label
        return {"metadata": {"labels": labels, "resourceVersion": str(self.version)}}


def run(node: Node, call: Any) -> tuple[Any, RecordedApi]:
    async def main() -> tuple[Any, RecordedApi]:
        api = RecordedApi(node.answer)
        try:
            return await call(NodeLabels(NodeName("node-1"), api)), api
        except DriverError as error:
            return error, api

    return virtual_time.run_with_virtual_time(main)


def test_the_label_is_set_on_the_version_that_was_read() -> None:
    node = Node()
    is_new, api = run(node, lambda labels: labels.set_domain_label(OURS, 5.0))
    assert is_new is True
    assert node.label == OURS
    assert api.lines() == [GET, PATCH]
    assert api.sent(PATCH).body == {
        "metadata": {"labels": {names.DOMAIN_LABEL: OURS}, "resourceVersion": "5"}
    }
    assert run(node, lambda labels: labels.set_domain_label(OURS, 5.0))[0] is False


def test_a_label_that_another_domain_got_meanwhile_is_left_alone() -> None:
    node = Node(between=[THEIRS])
    error, api = run(node, lambda labels: labels.set_domain_label(OURS, 5.0))
    assert isinstance(error, RetryableError)
    assert error.reason is Reason.NODE_IN_OTHER_DOMAIN
    assert error.facts == {"domain": THEIRS}
    assert node.label == THEIRS
    assert api.lines() == [GET, PATCH, GET]


def test_a_change_of_something_else_meanwhile_costs_another_read() -> None:
    node = Node(between=[None, None])
    is_new, api = run(node, lambda labels: labels.set_domain_label(OURS, 5.0))
    assert is_new is True
    assert node.label == OURS
    assert api.lines() == [GET, PATCH] * 3


def test_a_node_that_changes_faster_than_it_can_be_written_is_told() -> None:
    for call in (NodeLabels.set_domain_label, NodeLabels.remove_domain_label):
        node = Node(label=OURS if call is NodeLabels.remove_domain_label else None)
        node.between = [node.label] * 99
        error, api = run(node, lambda labels, call=call: call(labels, OURS, 5.0))
        assert isinstance(error, RetryableError)
        assert error.reason is Reason.API_UNAVAILABLE
        assert api.lines() == [GET, PATCH] * 8


@pytest.mark.parametrize(
    ("label", "uid", "left"),
    [(OURS, OURS, None), (THEIRS, OURS, THEIRS), (THEIRS, "", None), (None, OURS, None)],
    ids=["ours", "another domain's", "whatever it is", "none"],
)
def test_only_the_label_that_is_meant_is_removed(
    label: str | None, uid: str, left: str | None
) -> None:
    node = Node(label)
    result, api = run(node, lambda labels: labels.remove_domain_label(DomainUID(uid), 5.0))
    assert result is None
    assert node.label == left
    assert api.lines("PATCH") == ([PATCH] if label != left else [])


def test_a_label_that_another_domain_got_before_the_removal_stays() -> None:
    node = Node(OURS, between=[THEIRS])
    assert run(node, lambda labels: labels.remove_domain_label(OURS, 5.0))[0] is None
    assert node.label == THEIRS


def test_a_node_that_is_deleted_has_no_label_to_remove() -> None:
    node = Node(OURS, is_deleted=True)
    assert run(node, lambda labels: labels.remove_domain_label(OURS, 5.0))[0] is None


def test_a_label_is_corrected_only_if_it_is_still_the_one_that_was_judged() -> None:
    node = Node(THEIRS, between=[None])
    seen: list[str | None] = []

    def desired(label: str | None) -> str:
        seen.append(label)
        return OURS

    run(node, lambda labels: labels.reconcile_domain_label(desired, 5.0))
    assert (seen, node.label) == ([THEIRS], None), "the watch shows the change, and asks again"
    run(node, lambda labels: labels.reconcile_domain_label(desired, 5.0))
    assert (seen, node.label) == ([THEIRS, None], OURS)


def test_the_label_of_the_clique_is_written_when_it_differs_and_removed_without_one() -> None:
    clique = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
    _, api = run(Node(), lambda labels: labels.set_clique_label(clique, 5.0))
    assert api.sent(PATCH).body == {"metadata": {"labels": {names.GPU_CLIQUE_LABEL: clique}}}
    _, api = run(Node(), lambda labels: labels.set_clique_label(CliqueID(""), 5.0))
    assert api.lines() == [GET]
