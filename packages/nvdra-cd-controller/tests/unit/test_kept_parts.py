# SPDX-License-Identifier: Apache-2.0
"""What is kept of an object is all that is read of it, and does not grow with what users write."""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api import names
from nvdra_api.meta import JsonObject
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_cd_controller import kept_parts
from nvdra_runtime.computedomain import announcements, daemon_pods
from nvdra_runtime.computedomain.announcements import Announcement
from nvdra_testing.control_plane import domain_values

LONG: Final = "\N{GRINNING FACE}" + "x" * 250_000
MAX_TEXT: Final = 40_000
"""Of a kept object, as JSON with escapes."""

Keep = Callable[[JsonObject], JsonObject]


def metadata(**more: Any) -> JsonObject:
    return {
        "name": "a",
        "namespace": "team-a",
        "uid": "u",
        "resourceVersion": "5",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **more,
    }


def domain() -> JsonObject:
    node = {"name": "n", "ipAddress": "10.0.0.1", "cliqueID": "c", "index": 0, "status": "Ready"}
    condition = {"type": "Ready", "status": "True", "reason": "A", "message": "b"}
    when = {"observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    counts = {"readyNodes": 1, "expectedNodes": 1, "cliques": 1}
    status = {"status": "Ready", **counts, "nodes": [node], "conditions": [{**condition, **when}]}
    return domain_values.domain_json(2, status=status)


def clique() -> JsonObject:
    entry = {
        "nodeName": "n",
        "ipAddress": "10.0.0.1",
        "cliqueID": "c",
        "index": 0,
        "status": "Ready",
        "podUID": "p",
        "message": "m",
    }
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p"}
    labels = {names.DOMAIN_LABEL: "d", names.CLIQUE_LABEL: "c"}
    return {
        "apiVersion": names.NVIDIA_API_VERSION,
        "kind": names.CLIQUE_KIND,
        "metadata": metadata(labels=labels, ownerReferences=[owner]),
        "daemons": [entry],
    }


def template() -> JsonObject:
    return {
        "kind": "ResourceClaimTemplate",
        "metadata": metadata(
            labels={names.DOMAIN_LABEL: "d", names.DOMAIN_TARGET_LABEL: names.TARGET_DAEMON},
            finalizers=["example.com/theirs", names.DOMAIN_FINALIZER],
            annotations={kept_parts.ROOT_SPAN_ANNOTATION: "2026-01-01T00:00:00Z"},
            deletionTimestamp="2026-01-02T00:00:00Z",
        ),
    }


def node() -> JsonObject:
    return {"kind": "Node", "metadata": metadata(labels={names.DOMAIN_LABEL: "d"})}


def pod() -> JsonObject:
    said = announcements.annotation(Announcement("10.0.0.1", message="not yet"))
    links = json.dumps({"broken": {f"{number:0>250}": "LOST" for number in range(32)}})
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    gates = {"name": "FEATURE_GATES", "value": "ComputeDomainCliques=false"}
    return {
        "kind": "Pod",
        "metadata": metadata(
            labels={names.DOMAIN_LABEL: "d", names.CLIQUE_LABEL: "c"},
            annotations={names.DAEMON_ANNOTATION: said, names.LINKS_ANNOTATION: links},
        ),
        "spec": {
            "affinity": {"nodeAffinity": required},
            "containers": [{"name": "d", "env": [gates]}],
        },
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "m",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "False", "reason": "R"}],
            "containerStatuses": [{"ready": False, "restartCount": 1, "state": running}],
        },
    }


KINDS: Final[Mapping[str, tuple[Keep, Callable[[], JsonObject]]]] = {
    "domain": (kept_parts.of_domain, domain),
    "clique": (kept_parts.of_clique, clique),
    "template": (kept_parts.of_template, template),
    "node": (kept_parts.of_node, node),
    "pod": (kept_parts.of_pod, pod),
}
of_each_kind = pytest.mark.parametrize("kind", KINDS)


@of_each_kind
def test_what_is_read_is_kept(kind: str) -> None:
    keep, make = KINDS[kind]
    assert keep(make()) == make()


@of_each_kind
def test_what_users_write_is_not_kept(kind: str) -> None:
    keep, make = KINDS[kind]
    obj = make()
    found = obj["metadata"]
    found["annotations"] = {**found.get("annotations", {}), "example.com/a": LONG}
    for key in (names.DOMAIN_SETTINGS_ANNOTATION, names.TRACEPARENT_ANNOTATION):
        found["annotations"][key] = LONG
    found["labels"] = {**found.get("labels", {}), **{f"l{n}": "x" for n in range(10_000)}}
    found["finalizers"] = [f"example.com/{n}" for n in range(10_000)]
    found["managedFields"] = [{"fieldsV1": LONG}]
    found["foreign"] = LONG
    for part in (obj, obj.get("spec"), obj.get("status"), *obj.get("daemons", ())):
        if part is not None:
            part["foreign"] = LONG
    assert len(json.dumps(keep(obj))) < MAX_TEXT


@pytest.mark.parametrize("kind", ["domain", "template"])
def test_an_object_with_more_finalizers_than_are_kept_is_partial(kind: str) -> None:
    keep, make = KINDS[kind]
    obj = make()
    assert not kept_parts.is_partial(keep(obj))
    obj["metadata"]["finalizers"] = [*map(str, range(30)), names.DOMAIN_FINALIZER]
    kept = keep(obj)
    assert kept["metadata"]["finalizers"] == [*map(str, range(16)), names.DOMAIN_FINALIZER]
    assert kept_parts.is_partial(kept)


def test_a_clique_with_foreign_fields_of_entries_is_partial() -> None:
    obj = clique()
    assert not kept_parts.is_partial(kept_parts.of_clique(obj))
    obj["daemons"][0]["foreign"] = 1
    assert kept_parts.is_partial(kept_parts.of_clique(obj))


def test_a_domain_and_a_pod_are_read_as_if_they_were_whole() -> None:
    whole = domain()
    kept = kept_parts.of_domain(whole)
    assert ComputeDomain.model_validate(kept) == ComputeDomain.model_validate(whole)
    whole = pod()
    whole["spec"]["containers"][0]["env"].append({"name": "OTHER", "value": "x"})
    read = daemon_pods.read(whole)
    assert daemon_pods.read(kept_parts.of_pod(whole)) == read
    assert read.writes_status
    assert read.announcement is not None
    assert len(read.links.broken) == 32


def test_an_older_domain_without_a_channel_is_kept_without_one() -> None:
    whole = domain_values.domain_json()
    del whole["spec"]["channel"]
    assert kept_parts.of_domain(whole) == whole
    assert ComputeDomain.model_validate(kept_parts.of_domain(whole)).spec.channel is None


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=12,
)


@given(values, values)
def test_the_value_stays_the_same_and_nothing_is_changed(value: Any, model: Any) -> None:
    before = copy.deepcopy((value, model))
    made = kept_parts.shared(value, model)
    assert json.dumps(made, sort_keys=True) == json.dumps(value, sort_keys=True)
    assert (value, model) == before


@given(values)
def test_an_equal_value_is_the_model_itself(value: Any) -> None:
    assert kept_parts.shared(json.loads(json.dumps(value)), value) is value


def test_true_is_not_one() -> None:
    assert kept_parts.shared({"a": [True]}, {"a": [1]})["a"][0] is True


def test_objects_of_a_collection_differ_in_their_own_parts_alone() -> None:
    def daemonset(uid: str) -> Any:
        container = {"name": "daemon", "env": [{"name": "A", "value": "1"}, {"name": "UID"}]}
        text = json.dumps(
            {
                "metadata": {"name": uid, "managedFields": [1]},
                "spec": {"selector": {"uid": uid}, "template": {"containers": [container]}},
            }
        )
        return json.loads(text)

    transform = kept_parts.SharedParts(
        lambda obj: {"metadata": {"name": obj["metadata"]["name"]}, **obj}
    )
    first, second = transform(daemonset("u-1")), transform(daemonset("u-2"))
    assert second == daemonset("u-2")
    assert second["spec"]["template"] is first["spec"]["template"]
    assert second["spec"]["selector"] is not first["spec"]["selector"]
