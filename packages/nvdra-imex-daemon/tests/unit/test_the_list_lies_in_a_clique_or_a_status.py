"""The object around the entries: what of it we make true, what is sent, when nothing is."""

import copy
from typing import Any

import pytest
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.types.errors import DriverError, Reason
from nvdra_api.types.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_imex_daemon import shapes
from nvdra_imex_daemon.entries import Member, Report
from nvdra_imex_daemon.shapes import CliqueShape, Pod, Shape, StatusShape

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
DOMAIN = DomainUID("11111111-2222-3333-4444-555555555555")
POD = Pod("nvdra", "daemon-x7k2p", "0a0a0a0a-0000-4000-8000-00000000000a")
US = Member(CLIQUE, NodeName("node-a"), "10.4.1.7", PodUID(POD.uid), 18)
READY, FORMING = Report(is_ready=True), Report(is_ready=False, message="starting")


@pytest.fixture
def clique() -> CliqueShape:
    return CliqueShape(DOMAIN, US, POD)


@pytest.fixture
def status() -> StatusShape:
    return StatusShape(DOMAIN, "team-a", "ring")


def made(shape: Shape, obj: JsonObject | None, report: Report) -> JsonObject:
    change = shapes.wanted(shape, obj, US, report, preferred=None, is_pruned=False)
    assert change is not None
    return change


def is_true(shape: Shape, obj: JsonObject, report: Report) -> bool:
    return shapes.wanted(shape, obj, US, report, preferred=None, is_pruned=False) is None


def patched(shape: Shape, obj: JsonObject, change: JsonObject) -> JsonObject:
    """What the API server makes of our patch: test, then replace, at a place in a list."""
    operations = shapes.patch(shape, obj, change, US)
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


def test_a_clique_is_made_with_labels_and_our_pod_as_its_owner(clique: CliqueShape) -> None:
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


def test_nothing_is_written_where_all_is_said(clique: CliqueShape) -> None:
    obj = made(clique, None, FORMING)
    assert is_true(clique, obj, FORMING)
    assert not is_true(clique, obj, READY)


@pytest.mark.parametrize("lost", ["labels", "ownerReferences"])
def test_labels_and_owner_are_put_back(clique: CliqueShape, lost: str) -> None:
    obj = made(clique, None, FORMING)
    del obj["metadata"][lost]
    again = made(clique, obj, FORMING)
    assert again["metadata"][lost]
    assert shapes.patch(clique, obj, again, US) is None


def test_what_others_put_into_the_object_stays(clique: CliqueShape) -> None:
    obj = made(clique, None, FORMING)
    obj["metadata"]["labels"]["team"] = "a"
    obj["metadata"]["ownerReferences"].insert(0, {"kind": "Pod", "uid": "other"})
    obj["status"] = {"later": "version"}
    change = made(clique, obj, READY)
    assert change["metadata"] == obj["metadata"]
    assert change["status"] == {"later": "version"}


def test_readiness_is_a_patch_of_our_own_entry_alone(clique: CliqueShape) -> None:
    obj = made(clique, None, FORMING)
    obj["daemons"].insert(0, {"nodeName": "node-0", "cliqueID": CLIQUE, "index": 7})
    change = made(clique, obj, READY)
    operations = shapes.patch(clique, obj, change, US)
    assert operations is not None
    assert {operation["path"] for operation in operations} == {"/daemons/1"}
    assert patched(clique, obj, change) == change


def test_joining_and_taking_over_need_the_whole_list(clique: CliqueShape) -> None:
    obj = made(clique, None, FORMING)
    obj["daemons"][0]["podUID"] = "its-predecessor"
    assert shapes.patch(clique, obj, made(clique, obj, FORMING), US) is None
    alone = {**obj, "daemons": []}
    assert shapes.patch(clique, alone, made(clique, alone, FORMING), US) is None


def domain(**more: Any) -> JsonObject:
    metadata = {"name": "ring", "namespace": "team-a", "uid": DOMAIN}
    return {"metadata": metadata, "spec": {"numNodes": 2}, **more}


def test_in_a_status_we_write_the_nodes_and_leave_the_rest(status: StatusShape) -> None:
    obj = domain(status={"status": "Ready", "nodes": [{"name": "cpu", "cliqueID": ""}]})
    change = made(status, obj, FORMING)
    assert change["status"]["status"] == "Ready"
    assert [each["name"] for each in change["status"]["nodes"]] == ["cpu", "node-a"]
    ready = made(status, change, READY)
    assert patched(status, change, ready) == ready
    assert status.expected(obj) == 2


def test_a_status_that_was_never_written_gets_the_field_it_must_have(status: StatusShape) -> None:
    assert made(status, domain(), FORMING)["status"]["status"] == "NotReady"


@pytest.mark.parametrize("obj", [None, {"metadata": {"name": "ring", "uid": "another"}}])
def test_another_domain_of_the_name_is_not_written_to(
    status: StatusShape, obj: JsonObject | None
) -> None:
    with pytest.raises(DriverError) as refused:
        made(status, obj, FORMING)
    assert refused.value.reason is Reason.DOMAIN_NOT_FOUND
