# SPDX-License-Identifier: Apache-2.0
"""The object that contains the entries: its desired content and the patches of it."""

import copy
from typing import Any

import pytest
from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_api.meta import JsonObject
from nvdra_imex_daemon.membership import member_store
from nvdra_imex_daemon.membership.entries import MemberIdentity, MemberStatus
from nvdra_imex_daemon.membership.member_store import (
    CliqueMemberStore,
    MemberStore,
    Pod,
    StatusMemberStore,
)

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
DOMAIN = DomainUID("11111111-2222-3333-4444-555555555555")
POD = Pod("nvdra", "daemon-x7k2p", "0a0a0a0a-0000-4000-8000-00000000000a")
US = MemberIdentity(CLIQUE, NodeName("node-a"), "10.4.1.7", PodUID(POD.uid), 18)
READY, FORMING = MemberStatus(is_ready=True), MemberStatus(is_ready=False, message="starting")


@pytest.fixture
def clique() -> CliqueMemberStore:
    return CliqueMemberStore(DOMAIN, US, POD)


@pytest.fixture
def status() -> StatusMemberStore:
    return StatusMemberStore(DOMAIN, "team-a", "ring")


def made(shape: MemberStore, obj: JsonObject | None, report: MemberStatus) -> JsonObject:
    change = member_store.desired(
        shape, obj, US, report, preferred_index=None, drops_unknown_fields=False
    )
    assert change is not None
    return change


def is_true(shape: MemberStore, obj: JsonObject, report: MemberStatus) -> bool:
    return (
        member_store.desired(
            shape, obj, US, report, preferred_index=None, drops_unknown_fields=False
        )
        is None
    )


def patched(shape: MemberStore, obj: JsonObject, change: JsonObject) -> JsonObject:
    """Apply our patch like the API server: test, then replace an element of a list."""
    operations = member_store.own_entry_patch(shape, obj, change, US)
    assert operations is not None
    after: Any = copy.deepcopy(obj)
    for operation in operations:
        *parents, place = operation["path"].strip("/").split("/")
        found: Any = after
        for name in parents:
            found = found[name]
        if operation["op"] == "test":
            assert found[int(place)] == operation["value"]
        else:
            found[int(place)] = operation["value"]
    return dict(after)


def test_a_clique_is_created_with_labels_and_our_pod_as_its_owner(
    clique: CliqueMemberStore,
) -> None:
    assert clique.collection.endswith("/v1beta1/namespaces/nvdra/computedomaincliques")
    new = made(clique, None, FORMING)
    assert new["metadata"] == {
        "name": f"{DOMAIN}.{CLIQUE}",
        "namespace": "nvdra",
        "labels": {
            "resource.nvidia.com/computeDomain": DOMAIN,
            "resource.nvidia.com/computeDomain.cliqueID": CLIQUE,
        },
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": POD.name, "uid": POD.uid}],
    }
    assert [each["nodeName"] for each in new["daemons"]] == ["node-a"]


def test_nothing_is_written_if_nothing_changes(clique: CliqueMemberStore) -> None:
    obj = made(clique, None, FORMING)
    assert is_true(clique, obj, FORMING)
    assert not is_true(clique, obj, READY)


@pytest.mark.parametrize("lost", ["labels", "ownerReferences"])
def test_labels_and_owner_are_restored(clique: CliqueMemberStore, lost: str) -> None:
    obj = made(clique, None, FORMING)
    del obj["metadata"][lost]
    again = made(clique, obj, FORMING)
    assert again["metadata"][lost]
    assert member_store.own_entry_patch(clique, obj, again, US) is None


def test_what_others_added_to_the_object_is_kept(clique: CliqueMemberStore) -> None:
    obj = made(clique, None, FORMING)
    obj["metadata"]["labels"]["team"] = "a"
    obj["metadata"]["ownerReferences"].insert(0, {"kind": "Pod", "uid": "other"})
    obj["status"] = {"later": "version"}
    change = made(clique, obj, READY)
    assert change["metadata"] == obj["metadata"]
    assert change["status"] == {"later": "version"}


def test_readiness_is_a_patch_of_our_own_entry_alone(clique: CliqueMemberStore) -> None:
    obj = made(clique, None, FORMING)
    obj["daemons"].insert(0, {"nodeName": "node-0", "cliqueID": CLIQUE, "index": 7})
    change = made(clique, obj, READY)
    operations = member_store.own_entry_patch(clique, obj, change, US)
    assert operations is not None
    assert {operation["path"] for operation in operations} == {"/daemons/1"}
    assert patched(clique, obj, change) == change


def test_joining_and_taking_over_replace_the_whole_list(clique: CliqueMemberStore) -> None:
    obj = made(clique, None, FORMING)
    obj["daemons"][0]["podUID"] = "its-predecessor"
    assert member_store.own_entry_patch(clique, obj, made(clique, obj, FORMING), US) is None
    alone = {**obj, "daemons": []}
    assert member_store.own_entry_patch(clique, alone, made(clique, alone, FORMING), US) is None


def domain(**more: Any) -> JsonObject:
    metadata = {"name": "ring", "namespace": "team-a", "uid": DOMAIN}
    return {"metadata": metadata, "spec": {"numNodes": 2}, **more}


def test_in_a_status_only_the_nodes_are_written(status: StatusMemberStore) -> None:
    obj = domain(status={"status": "Ready", "nodes": [{"name": "cpu", "cliqueID": ""}]})
    change = made(status, obj, FORMING)
    assert change["status"]["status"] == "Ready"
    assert [each["name"] for each in change["status"]["nodes"]] == ["cpu", "node-a"]
    ready = made(status, change, READY)
    assert patched(status, change, ready) == ready
    assert status.expected_nodes(obj) == 2


def test_an_empty_status_gets_its_required_field(
    status: StatusMemberStore,
) -> None:
    assert made(status, domain(), FORMING)["status"]["status"] == "NotReady"


@pytest.mark.parametrize("obj", [None, {"metadata": {"name": "ring", "uid": "another"}}])
def test_another_domain_of_the_same_name_is_not_written(
    status: StatusMemberStore, obj: JsonObject | None
) -> None:
    with pytest.raises(DriverError) as refused:
        made(status, obj, FORMING)
    assert refused.value.reason is Reason.DOMAIN_NOT_FOUND


def test_a_patch_fails_if_our_entry_is_not_the_one_that_we_know(clique: CliqueMemberStore) -> None:
    obj = made(clique, None, FORMING)
    obj["daemons"].insert(0, {"nodeName": "node-0", "cliqueID": CLIQUE, "index": 7})
    change = made(clique, obj, READY)
    assert member_store.own_entry_patch(clique, obj, change, US) == [
        {"op": "test", "path": "/daemons/1", "value": obj["daemons"][1]},
        {"op": "replace", "path": "/daemons/1", "value": change["daemons"][1]},
    ]


def test_another_index_is_written_with_the_whole_list_because_it_must_be_unique(
    clique: CliqueMemberStore,
) -> None:
    obj = made(clique, None, FORMING)
    obj["daemons"].insert(0, {"nodeName": "node-0", "cliqueID": CLIQUE, "index": 0})
    change = made(clique, obj, FORMING)
    assert [each["index"] for each in change["daemons"]] == [0, 1]
    assert member_store.own_entry_patch(clique, obj, change, US) is None
