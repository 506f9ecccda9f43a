# SPDX-License-Identifier: Apache-2.0
"""Each write names the object that was read, so that it never hits another one."""

from collections.abc import Callable
from typing import Any

import pytest
from nvdra_api import names
from nvdra_api.errors import DriverError, PermanentError, Reason
from nvdra_api.ids import NodeName
from nvdra_api.meta import JsonObject
from nvdra_cd_controller import children, kept_parts, network_policies
from nvdra_cd_controller.domain_snapshot import Child, DomainSnapshot
from nvdra_cd_controller.informers import DomainInformers
from nvdra_cd_controller.network_policies import NetworkRules
from nvdra_cd_controller.object_writer import ObjectWriter
from nvdra_cd_controller.teardown import (
    Delete,
    RemoveDomainFinalizer,
    RemoveFinalizer,
    RemoveNodeLabel,
)
from nvdra_runtime.kube import connection
from nvdra_runtime.kube.errors import Conflict, Invalid
from nvdra_testing import virtual_time
from nvdra_testing.control_plane import domain_values
from nvdra_testing.control_plane.domain_values import CHILD_CONFIG, UID
from nvdra_testing.faults import recorded_api
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

OTHER = "99999999-2222-3333-4444-555555555555"
NAME = f"computedomain-daemon-{UID}"
DAEMONSETS = "/apis/apps/v1/namespaces/nvdra/daemonsets"
DAEMONSET = f"{DAEMONSETS}/{NAME}"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/nvdra/networkpolicies"
POLICY = f"{POLICIES}/{NAME}"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaimtemplates"
TEMPLATE = f"{TEMPLATES}/ring-channel"
DOMAIN = "/apis/resource.nvidia.com/v1beta1/namespaces/team-a/computedomains/ring"
SNAPSHOT = DomainSnapshot(UID, domain_values.domain(), domain_values.domain_json())
GONE = recorded_api.status(404, "NotFound")


def wanted_daemonset() -> JsonObject:
    return children.daemonset(UID, "nvdra", CHILD_CONFIG)


def wanted_template() -> JsonObject:
    return children.workload_claim_template(domain_values.domain(), CHILD_CONFIG)


def wanted_policy() -> JsonObject:
    return network_policies.network_policy(UID, "nvdra", NetworkRules())


def stored(wanted: JsonObject, version: str = "5", **metadata: Any) -> JsonObject:
    body = children.creation_body(wanted)
    own = {"uid": f"uid-{body['kind']}", "resourceVersion": version, **metadata}
    return {**body, "metadata": {**body["metadata"], **own}}


def child(obj: JsonObject) -> Child:
    return Child(obj["kind"], obj)


def metadata_of(obj: JsonObject) -> Child:
    """A template as the informer keeps it."""
    return Child(obj["kind"], {"kind": obj["kind"], "metadata": obj["metadata"]})


def run(
    answer: Callable[[Request], Answer], call: Callable[[ObjectWriter], Any]
) -> tuple[Any, RecordedApi]:
    async def main() -> tuple[Any, RecordedApi]:
        api = RecordedApi(answer)
        informers = DomainInformers(
            api, ["nvdra"], lambda _: None, lambda _: None, is_host_managed=False
        )
        try:
            return await call(ObjectWriter(api, informers)), api
        except DriverError as error:
            return error, api

    return virtual_time.run_with_virtual_time(main)


def always(answer: Answer) -> Callable[[Request], Answer]:
    return lambda _: answer


def echoed(obj: JsonObject) -> Callable[[Request], Answer]:
    """The API server's answer to a change: the object, which is newer."""
    metadata = {**obj["metadata"], "resourceVersion": "99"}
    return always((200, {**obj, "metadata": metadata}))


def test_only_the_child_that_was_read_is_deleted() -> None:
    obj = stored(wanted_daemonset())
    result, api = run(
        always((200, {})), lambda writer: writer.perform(SNAPSHOT, Delete(child(obj)))
    )
    assert result is None
    assert api.sent(f"DELETE {DAEMONSET}").body == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "uid-DaemonSet"},
    }


@pytest.mark.parametrize("kind", ["DaemonSet", "ResourceClaimTemplate"])
def test_our_finalizer_is_removed_from_the_version_that_was_read(kind: str) -> None:
    wanted = wanted_daemonset() if kind == "DaemonSet" else wanted_template()
    theirs = "example.com/theirs"
    obj = stored(wanted, finalizers=[theirs, names.DOMAIN_FINALIZER])
    _, api = run(echoed(obj), lambda writer: writer.perform(SNAPSHOT, RemoveFinalizer(child(obj))))
    path = DAEMONSET if kind == "DaemonSet" else TEMPLATE
    assert api.lines() == [f"PATCH {path}"]
    assert api.sent(f"PATCH {path}").body == {
        "metadata": {"resourceVersion": "5", "finalizers": [theirs]}
    }


def test_the_domains_finalizer_is_added_and_removed_on_the_version_that_was_read() -> None:
    bare = domain_values.domain_json()
    bare["metadata"]["finalizers"] = ["example.com/theirs"]
    snapshot = DomainSnapshot(UID, domain_values.domain(), bare)
    settings = {names.DOMAIN_SETTINGS_ANNOTATION: "{}"}
    _, api = run(echoed(bare), lambda writer: writer.prepare_domain(snapshot, settings))
    assert api.sent(f"PATCH {DOMAIN}").body == {
        "metadata": {
            "resourceVersion": "7",
            "finalizers": ["example.com/theirs", names.DOMAIN_FINALIZER],
            "annotations": settings,
        }
    }
    _, api = run(echoed(bare), lambda writer: writer.prepare_domain(SNAPSHOT, {}))
    assert api.requests == []
    _, api = run(
        echoed(SNAPSHOT.stored),
        lambda writer: writer.perform(SNAPSHOT, RemoveDomainFinalizer()),
    )
    assert api.sent(f"PATCH {DOMAIN}").body == {
        "metadata": {"resourceVersion": "7", "finalizers": None}
    }


def test_a_nodes_label_is_removed_only_while_it_is_this_domains() -> None:
    node = {"kind": "Node", "metadata": {"name": "a", "uid": "n", "resourceVersion": "9"}}
    action = RemoveNodeLabel(NodeName("a"))
    _, api = run(always((200, node)), lambda writer: writer.perform(SNAPSHOT, action))
    sent = api.sent("PATCH /api/v1/nodes/a")
    path = "/metadata/labels/resource.nvidia.com~1computeDomain"
    assert sent.content_type == "application/json-patch+json"
    assert sent.body == [
        {"op": "test", "path": path, "value": UID},
        {"op": "remove", "path": path},
    ]


def refused(*nodes: JsonObject) -> Callable[[Request], Answer]:
    """An API server that refuses to change a node, and finds these with the domain's label."""
    refusal = recorded_api.status(422, "Invalid")
    return lambda asked: refusal if asked.line.startswith("PATCH") else (200, {"items": [*nodes]})


@pytest.mark.parametrize("answer", [refused(), always(GONE)])
def test_a_node_that_is_gone_or_in_another_domain_is_left_alone(
    answer: Callable[[Request], Answer],
) -> None:
    action = RemoveNodeLabel(NodeName("a"))
    result, api = run(answer, lambda writer: writer.perform(SNAPSHOT, action))
    assert result is None
    assert api.lines("PATCH") == ["PATCH /api/v1/nodes/a"]


def test_a_label_that_the_api_server_does_not_let_go_is_not_taken_for_anothers() -> None:
    action = RemoveNodeLabel(NodeName("a"))
    result, api = run(refused({}), lambda writer: writer.perform(SNAPSHOT, action))
    assert isinstance(result, Invalid)
    assert api.sent("GET /api/v1/nodes").params == {
        "fieldSelector": "metadata.name=a",
        "labelSelector": f"{names.DOMAIN_LABEL}={UID}",
    }


def test_a_conflict_is_told_so_that_the_domain_is_looked_at_again() -> None:
    obj = stored(wanted_daemonset(), deletionTimestamp="2026-01-01T00:00:00Z")
    conflict = always(recorded_api.status(409, "Conflict"))
    for call in (
        lambda writer: writer.perform(SNAPSHOT, RemoveFinalizer(child(obj))),
        lambda writer: writer.perform(SNAPSHOT, Delete(child(obj))),
        lambda writer: writer.prepare_domain(SNAPSHOT, {"a": "b"}),
    ):
        assert isinstance(run(conflict, call)[0], Conflict)


def test_a_child_that_is_missing_is_created_as_the_server_normalizes_it() -> None:
    wanted = wanted_template()
    _, api = run(always((200, stored(wanted))), lambda writer: writer.ensure(wanted, ()))
    sent = api.sent(f"POST {TEMPLATES}")
    assert sent.body == children.creation_body(wanted)
    assert sent.content_type == "application/yaml"


def test_an_object_of_the_childs_name_is_taken_over_only_if_it_is_ours() -> None:
    wanted = wanted_template()
    foreign = stored(wanted, labels={names.DOMAIN_LABEL: OTHER})
    unlabelled = stored(wanted, labels={})

    def answers(found: JsonObject) -> Callable[[Request], Answer]:
        def answer(request: Request) -> Answer:
            if request.line.startswith("POST"):
                return recorded_api.status(409, "AlreadyExists")
            return 200, {**found, "metadata": {**found["metadata"], "resourceVersion": "99"}}

        return answer

    error, api = run(answers(foreign), lambda writer: writer.ensure(wanted, ()))
    assert isinstance(error, PermanentError)
    assert error.reason is Reason.NAME_TAKEN
    assert f"the ComputeDomain with the UID {OTHER}" in error.message
    assert api.lines() == [f"POST {TEMPLATES}", f"GET {TEMPLATE}"]
    _, api = run(answers(unlabelled), lambda writer: writer.ensure(wanted, ()))
    assert api.lines() == [f"POST {TEMPLATES}", f"GET {TEMPLATE}", f"PATCH {TEMPLATE}"]


def test_a_template_with_another_spec_is_deleted_because_it_cannot_be_changed() -> None:
    wanted = wanted_template()
    other = stored(wanted)
    other["spec"] = {"spec": {"devices": {"requests": []}}}
    _, api = run(always((200, other)), lambda writer: writer.ensure(wanted, (metadata_of(other),)))
    assert api.lines() == [f"GET {TEMPLATE}", f"DELETE {TEMPLATE}"]
    assert api.requests[1].body["preconditions"] == {"uid": "uid-ResourceClaimTemplate"}


def test_the_spec_of_a_template_is_read_once() -> None:
    wanted = wanted_template()
    known = metadata_of(stored(wanted))

    async def twice(writer: ObjectWriter) -> None:
        for _ in range(2):
            await writer.ensure(wanted, (known,))

    _, api = run(always((200, stored(wanted))), twice)
    assert api.lines() == [f"GET {TEMPLATE}"]


def test_the_spec_of_a_template_that_the_controller_created_is_known() -> None:
    wanted = wanted_template()

    async def created_and_seen(writer: ObjectWriter) -> None:
        await writer.ensure(wanted, ())
        await writer.ensure(wanted, (metadata_of(stored(wanted)),))

    _, api = run(always((201, stored(wanted))), created_and_seen)
    assert api.lines() == [f"POST {TEMPLATES}"]


def test_a_child_as_it_should_be_is_not_written() -> None:
    wanted = wanted_daemonset()
    _, api = run(always((500, {})), lambda writer: writer.ensure(wanted, (child(stored(wanted)),)))
    assert api.requests == []


def test_a_network_policy_is_written_like_every_child() -> None:
    wanted = wanted_policy()
    _, api = run(always((201, stored(wanted))), lambda writer: writer.ensure(wanted, ()))
    assert api.sent(f"POST {POLICIES}").body == wanted
    changed = stored(wanted)
    changed["spec"] = {**wanted["spec"], "ingress": [{}]}
    _, api = run(echoed(changed), lambda writer: writer.ensure(wanted, (child(changed),)))
    assert api.sent(f"PUT {POLICY}").body["spec"] == wanted["spec"]


def test_network_policies_that_are_not_wanted_any_more_are_deleted_once() -> None:
    there = child(stored(wanted_policy()))
    leaving = child(stored(wanted_policy(), deletionTimestamp="2026-01-01T00:00:00Z"))
    _, api = run(always((200, {})), lambda writer: writer.remove((there,)))
    assert api.sent(f"DELETE {POLICY}").body["preconditions"] == {"uid": "uid-NetworkPolicy"}
    _, api = run(always((200, {})), lambda writer: writer.remove((leaving,)))
    assert api.requests == []


def test_a_network_policy_that_cannot_be_written_names_what_to_correct() -> None:
    wanted = wanted_policy()
    ensure: Callable[[ObjectWriter], Any] = lambda writer: writer.ensure(  # noqa: E731
        wanted, ()
    )
    invalid, _ = run(always(recorded_api.status(422, "Invalid")), ensure)
    assert "daemon.networkPolicy.metricsFrom" in invalid.remedy

    foreign = stored(wanted, labels={names.DOMAIN_LABEL: OTHER})
    exists = recorded_api.status(409, "AlreadyExists")
    taken, api = run(
        lambda asked: exists if asked.line.startswith("POST") else (200, foreign), ensure
    )
    assert taken.reason is Reason.NAME_TAKEN
    assert taken.remedy == "delete it if it is not needed"
    assert api.lines() == [f"POST {POLICIES}", f"GET {POLICY}"]


def test_a_status_is_based_on_the_version_that_was_read() -> None:
    status = {"status": "Ready"}
    _, api = run(echoed(SNAPSHOT.stored), lambda writer: writer.update_status(SNAPSHOT, status))
    body = api.sent(f"PUT {DOMAIN}/status").body
    assert body["metadata"]["resourceVersion"] == "7"
    assert body["status"] == status


CLIQUES = "/apis/resource.nvidia.com/v1beta1/namespaces/nvdra/computedomaincliques"


def clique(**metadata: Any) -> JsonObject:
    labels = {names.DOMAIN_LABEL: UID}
    known = {"name": "c", "namespace": "nvdra", "uid": "u", "resourceVersion": "8"}
    return {
        "apiVersion": names.NVIDIA_API_VERSION,
        "kind": names.CLIQUE_KIND,
        "metadata": {**known, "labels": labels, **metadata},
        "daemons": [{"nodeName": "b", "index": 1}],
    }


def test_of_a_clique_entries_and_owners_are_set_on_the_version_that_was_read() -> None:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]
    change = clique(ownerReferences=owners)
    _, api = run(always((200, clique())), lambda writer: writer.write_clique(change, is_new=False))
    assert api.lines() == [f"PATCH {CLIQUES}/c"]
    assert api.sent(f"PATCH {CLIQUES}/c").body == {
        "metadata": {"resourceVersion": "8", "ownerReferences": owners},
        "daemons": clique()["daemons"],
    }


def test_a_clique_that_is_gone_when_it_is_read_whole_is_a_conflict() -> None:
    call = lambda writer: writer.whole_clique(clique())  # noqa: E731
    assert run(always((200, clique())), call)[0] == clique()
    assert isinstance(run(always(GONE), call)[0], Conflict)


@pytest.mark.parametrize("answer", [recorded_api.status(409, "Conflict"), GONE])
def test_a_clique_that_another_one_has_changed_is_a_conflict(answer: Answer) -> None:
    call = lambda writer: writer.write_clique(clique(), is_new=False)  # noqa: E731
    assert isinstance(run(always(answer), call)[0], Conflict)


@pytest.mark.parametrize("has_labels", [True, False])
def test_a_clique_that_exists_already_gets_the_labels_by_which_it_is_found(
    *, has_labels: bool
) -> None:
    there = clique() if has_labels else clique(labels={"theirs": "x"})

    def answer(request: Request) -> Answer:
        return (
            recorded_api.status(409, "AlreadyExists")
            if request.line.startswith("POST")
            else (200, there)
        )

    error, api = run(answer, lambda writer: writer.write_clique(clique(), is_new=True))
    assert isinstance(error, Conflict)
    seen = [f"POST {CLIQUES}", f"GET {CLIQUES}/c"]
    assert api.lines() == (seen if has_labels else [*seen, f"PATCH {CLIQUES}/c"])
    if not has_labels:
        assert api.sent(f"PATCH {CLIQUES}/c").body == {
            "metadata": {"resourceVersion": "8", "labels": {names.DOMAIN_LABEL: UID}}
        }


THEIRS = [f"example.com/theirs-{number}" for number in range(40)]


def listed(obj: JsonObject) -> Callable[[Request], Answer]:
    """The whole object in a list, and as the answer to a change."""

    def answer(request: Request) -> Answer:
        is_list = request.line.startswith("GET") and request.accept == connection.METADATA_LIST
        metadata = {**obj["metadata"], "resourceVersion": "99"}
        return 200, {"items": [obj]} if is_list else {**obj, "metadata": metadata}

    return answer


@pytest.mark.parametrize("ours_at", [0, 20, 40])
def test_finalizers_of_others_that_are_not_kept_stay(ours_at: int) -> None:
    finalizers = [*THEIRS[:ours_at], names.DOMAIN_FINALIZER, *THEIRS[ours_at:]]
    whole = domain_values.domain_json()
    whole["metadata"]["finalizers"] = finalizers
    snapshot = DomainSnapshot(UID, domain_values.domain(), kept_parts.of_domain(whole))
    settings = {names.DOMAIN_SETTINGS_ANNOTATION: "{}"}
    _, api = run(listed(whole), lambda writer: writer.prepare_domain(snapshot, settings))
    assert api.sent(f"PATCH {DOMAIN}").body["metadata"]["finalizers"] == finalizers
    (read,) = (each for each in api.requests if each.line.startswith("GET"))
    assert read.params == {"fieldSelector": "metadata.name=ring"}

    _, api = run(listed(whole), lambda writer: writer.perform(snapshot, RemoveDomainFinalizer()))
    assert api.sent(f"PATCH {DOMAIN}").body["metadata"]["finalizers"] == THEIRS

    template = stored(wanted_template(), finalizers=finalizers)
    kept = Child("ResourceClaimTemplate", kept_parts.of_template(template))
    _, api = run(listed(template), lambda writer: writer.perform(SNAPSHOT, RemoveFinalizer(kept)))
    assert api.sent(f"PATCH {TEMPLATE}").body == {
        "metadata": {"resourceVersion": "5", "finalizers": THEIRS}
    }


def test_a_template_that_lost_its_label_gets_it_and_keeps_the_finalizers_of_others() -> None:
    wanted = wanted_template()
    whole = stored(wanted, labels={}, finalizers=THEIRS)

    def answer(request: Request) -> Answer:
        if request.line.startswith("POST"):
            return recorded_api.status(409, "AlreadyExists")
        if request.line.startswith("GET"):
            return 200, whole
        return listed(whole)(request)

    _, api = run(answer, lambda writer: writer.ensure(wanted, ()))
    assert api.sent(f"PATCH {TEMPLATE}").body == {
        "metadata": {
            "resourceVersion": "5",
            "labels": wanted["metadata"]["labels"],
            "finalizers": [*THEIRS, names.DOMAIN_FINALIZER],
        }
    }


def test_the_spec_of_a_template_that_is_not_ours_is_not_remembered() -> None:
    wanted, known = wanted_template(), metadata_of(stored(wanted_template()))
    other = stored(wanted)
    other["spec"] = {"spec": {"devices": {"requests": []}}, "long": "x" * 1000}

    async def twice(writer: ObjectWriter) -> None:
        for _ in range(2):
            await writer.ensure(wanted, (known,))

    _, api = run(always((200, other)), twice)
    assert api.lines("GET") == [f"GET {TEMPLATE}"] * 2
