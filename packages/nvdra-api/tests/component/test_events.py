# SPDX-License-Identifier: Apache-2.0
from datetime import UTC, datetime

from nvdra_api.ids import ClaimUID, NodeName, TraceID
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_runtime.kube import event_recorder
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.event_recorder import EventRecorder
from nvdra_testing.control_plane import apiserver
from nvdra_testing.polling import wait_until

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
NODE = NodeName("node-a")


def claim(name: str) -> ResourceClaim:
    return ResourceClaim.model_validate(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-of-{name}"},
            "status": {
                "reservedFor": [
                    {"resource": "pods", "name": f"{name}-pod", "uid": f"uid-of-{name}-pod"},
                    {"apiGroup": "x.k8s.io", "resource": "groups", "name": "g", "uid": "u"},
                ]
            },
        }
    )


def written(server: apiserver.ApiServer, name: str) -> list[JsonObject]:
    selector = f"fieldSelector=involvedObject.name%3D{name}"
    found: list[JsonObject] = server.request(
        "GET", f"/api/v1/namespaces/default/events?{selector}"
    )["items"]
    return found


def reporter(api: Client) -> EventRecorder:
    return EventRecorder(api, "gpu.nvidia.com", NODE, now=lambda: NOON)


async def test_a_failure_is_told_on_the_claim_and_on_its_pod_with_the_trace(
    server: apiserver.ApiServer, api: Client
) -> None:
    trace = TraceID("0af7651916cd43dd8448eb211c80319c")
    async with reporter(api).running() as reports:
        subjects = event_recorder.claim_and_pod_references(claim("held"))
        reports.emit(subjects, "Warning", "DeviceInUse", "gpu-0 is held", trace)
    (on_claim,), (on_pod,) = written(server, "held"), written(server, "held-pod")
    assert on_claim["involvedObject"] == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "name": "held",
        "namespace": "default",
        "uid": "uid-of-held",
    }
    assert on_pod["involvedObject"]["kind"] == "Pod"
    for event in (on_claim, on_pod):
        assert (event["type"], event["reason"], event["message"], event["count"]) == (
            "Warning",
            "DeviceInUse",
            "gpu-0 is held",
            1,
        )
        assert event["lastTimestamp"] == "2026-01-02T12:00:00Z"
        assert event["source"] == {"component": "gpu.nvidia.com", "host": "node-a"}
        assert event["metadata"]["annotations"] == {"nvdra.nvidia.com/trace-id": trace}
    assert reports.dropped == 0


async def test_events_of_a_component_are_found_by_their_source(
    server: apiserver.ApiServer, api: Client
) -> None:
    """As the pages say: `--field-selector involvedObject.kind=Node,source=COMPONENT`."""
    for component in ("kubelet", "component-of-this-test"):  # the server has the Events of others
        reports = EventRecorder(api, component, NodeName("node-s"), now=lambda: NOON)
        async with reports.running():
            node = event_recorder.node_reference(NodeName("node-s"))
            reports.emit((node,), "Warning", "Told", f"by {component}")
    selector = "involvedObject.kind%3DNode%2Csource%3Dcomponent-of-this-test"
    found = server.request("GET", f"/api/v1/events?fieldSelector={selector}")["items"]
    assert [event["message"] for event in found] == ["by component-of-this-test"]


async def test_repeats_within_a_minute_are_not_written_one_by_one(
    server: apiserver.ApiServer, api: Client
) -> None:
    async with reporter(api).running() as reports:
        for _ in range(20):
            reports.emit(
                event_recorder.claim_and_pod_references(claim("again")),
                "Warning",
                "LockTimeout",
                "later",
            )
        await wait_until(lambda: written(server, "again"))
        for _ in range(20):
            reports.emit(
                event_recorder.claim_and_pod_references(claim("again")),
                "Warning",
                "LockTimeout",
                "later",
            )
    (event,) = written(server, "again")
    assert event["count"] <= 20


async def test_repeats_are_counted_in_the_same_event_when_the_interval_is_over(
    server: apiserver.ApiServer, api: Client
) -> None:
    subjects = event_recorder.claim_and_pod_references(claim("counted"))[:1]
    reports = EventRecorder(api, "gpu.nvidia.com", NODE, now=lambda: NOON, interval_s=0.2)
    async with reports.running():
        for message in ("first", "second", "third"):
            reports.emit(subjects, "Warning", "LockTimeout", message)
        await wait_until(lambda: [each["count"] for each in written(server, "counted")] == [3])
    assert [each["message"] for each in written(server, "counted")] == ["third"]


async def test_several_things_of_an_object_are_told_at_once_and_each_for_itself(
    server: apiserver.ApiServer, api: Client
) -> None:
    node = (event_recorder.node_reference(NodeName("two-gpus")),)
    async with reporter(api).running() as reports:
        for gpu in ("gpu-0", "gpu-1", "gpu-0"):
            reports.emit(node, "Warning", "DeviceUnhealthy", f"{gpu} is lost", about=gpu)
        await wait_until(lambda: len(written(server, "two-gpus")) == 2)
    told = {each["message"]: each["count"] for each in written(server, "two-gpus")}
    assert told == {"gpu-0 is lost": 2, "gpu-1 is lost": 1}


async def test_claims_of_one_pod_that_fail_alike_are_told_each_on_the_pod(
    server: apiserver.ApiServer, api: Client
) -> None:
    consumer = [{"resource": "pods", "name": "pod-of-both", "uid": "uid-of-both"}]
    async with reporter(api).running() as reports:
        for name in ("first-of-both", "second-of-both"):
            metadata = {"name": name, "namespace": "default", "uid": f"uid-of-{name}"}
            status = {"reservedFor": consumer}
            found = ResourceClaim.model_validate({"metadata": metadata, "status": status})
            reports.emit_for_claim(found.ref, found, "Warning", "DeviceInUse", f"{name} waits")
    assert {each["message"] for each in written(server, "pod-of-both")} == {
        "first-of-both waits",
        "second-of-both waits",
    }


async def test_an_event_that_has_expired_is_made_anew(
    server: apiserver.ApiServer, api: Client
) -> None:
    subjects = event_recorder.claim_and_pod_references(claim("expired"))[:1]
    reports = EventRecorder(api, "gpu.nvidia.com", NODE, now=lambda: NOON, interval_s=0.2)
    async with reports.running():
        reports.emit(subjects, "Warning", "LockTimeout", "first")
        await wait_until(lambda: written(server, "expired"))
        (expired,) = written(server, "expired")
        path = f"/api/v1/namespaces/default/events/{expired['metadata']['name']}"
        server.request("DELETE", path)
        reports.emit(subjects, "Warning", "LockTimeout", "second")
        await wait_until(lambda: written(server, "expired"))
    (event,) = written(server, "expired")
    assert (event["message"], event["count"]) == ("second", 2)


async def test_a_node_event_is_found_by_describing_the_node(
    server: apiserver.ApiServer, api: Client
) -> None:
    async with reporter(api).running() as reports:
        node = event_recorder.node_reference(NodeName("node-with-news"))
        reports.emit((node,), "Normal", "Discovered", "8 GPUs")
    (event,) = written(server, "node-with-news")
    assert event["involvedObject"]["uid"] == "node-with-news"
    assert event["metadata"]["namespace"] == "default"


async def test_what_cannot_be_written_is_dropped_and_counted(api: Client) -> None:
    async with reporter(api).running() as reports:
        ref = ClaimRef("no-such-namespace", "c", ClaimUID("u"))
        subject = event_recorder.ObjectReference("v1", "Pod", ref.name, ref.uid, ref.namespace)
        reports.emit((subject,), "Warning", "Internal", "lost")
    assert reports.dropped == 1


async def test_a_full_queue_drops_instead_of_waiting(api: Client) -> None:
    reports = reporter(api)
    for number in range(1000):
        subject = event_recorder.ObjectReference("v1", "Pod", f"p{number}", f"u{number}", "default")
        reports.emit((subject,), "Normal", "Prepared", "ready")
    assert reports.dropped == 1000 - 256


async def test_a_long_message_is_cut_between_characters(
    server: apiserver.ApiServer, api: Client
) -> None:
    async with reporter(api).running() as reports:
        subjects = event_recorder.claim_and_pod_references(claim("wordy"))
        reports.emit(subjects, "Warning", "Internal", "é" * 2000)
    (event,) = written(server, "wordy")
    assert event["message"] == "é" * 510 + "…"


async def test_a_message_with_a_lone_surrogate_is_written(
    server: apiserver.ApiServer, api: Client
) -> None:
    async with reporter(api).running() as reports:
        subjects = event_recorder.claim_and_pod_references(claim("odd"))
        reports.emit(subjects, "Warning", "Internal", "a file \udcff.json")
    (event,) = written(server, "odd")
    assert event["message"] == r"a file \udcff.json"
