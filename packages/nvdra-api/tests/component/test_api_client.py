# SPDX-License-Identifier: Apache-2.0
import asyncio
import base64
import datetime
import json
import stat
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import ClaimUID
from nvdra_api.meta import JsonObject
from nvdra_api.resource.claims import ClaimRef
from nvdra_lab.kubernetes.certificates import Authority
from nvdra_runtime.kube import client
from nvdra_runtime.kube.client import Client, FinishedRequest, KubeSettings
from nvdra_runtime.kube.errors import Conflict, Invalid, NotFound, NotServed
from nvdra_testing.control_plane import apiserver
from nvdra_testing.faults.canned_http import CannedServer, http_response, serve_responses

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


def soon(seconds: float = 5) -> float:
    return asyncio.get_running_loop().time() + seconds


def make_claim(server: apiserver.ApiServer, name: str) -> ClaimRef:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }
    uid = server.create(CLAIMS, body)["metadata"]["uid"]
    return ClaimRef("default", name, ClaimUID(uid))


def configmap(name: str, **data: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": data,
    }


async def test_a_claim_is_read_with_its_allocation(
    server: apiserver.ApiServer, api: Client
) -> None:
    ref = make_claim(server, "read-me")
    stored = server.request("GET", f"{CLAIMS}/read-me")
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-3"}
    stored["status"] = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
    }
    server.request("PUT", f"{CLAIMS}/read-me/status", stored)
    claim = await api.get_claim(ref, soon())
    assert claim.ref == ref
    assert claim.status.allocation is not None
    (device,) = claim.status.allocation.devices.results
    assert (device.pool, device.device, device.base_request) == ("node-a", "gpu-3", "gpu")


async def test_a_claim_that_is_not_there_is_claim_not_found(api: Client) -> None:
    with pytest.raises(PermanentError) as raised:
        await api.get_claim(ClaimRef("default", "never", ClaimUID("u")), soon())
    assert raised.value.reason is Reason.CLAIM_NOT_FOUND
    assert isinstance(raised.value.__cause__, NotFound)


async def test_another_claim_of_the_same_name_is_refused_with_both_uids(
    server: apiserver.ApiServer, api: Client
) -> None:
    ref = make_claim(server, "replaced")
    server.request("DELETE", f"{CLAIMS}/replaced")
    newer = make_claim(server, "replaced")
    with pytest.raises(PermanentError) as raised:
        await api.get_claim(ref, soon())
    assert raised.value.reason is Reason.CLAIM_UID_CHANGED
    assert ref.uid in raised.value.message
    assert newer.uid in raised.value.message


async def test_an_object_can_be_created_replaced_patched_and_deleted(api: Client) -> None:
    created = await api.create(CONFIGMAPS, configmap("life", a="1"), soon())
    replaced = await api.replace(f"{CONFIGMAPS}/life", {**created, "data": {"a": "2"}}, soon())
    patched = await api.patch(f"{CONFIGMAPS}/life", {"data": {"b": "3"}}, soon())
    assert patched["data"] == {"a": "2", "b": "3"}
    with pytest.raises(Conflict):
        await api.replace(f"{CONFIGMAPS}/life", created, soon())
    with pytest.raises(Conflict):
        await api.delete(f"{CONFIGMAPS}/life", soon(), uid="another")
    stale = replaced["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await api.delete(f"{CONFIGMAPS}/life", soon(), resource_version=stale)
    await api.delete(f"{CONFIGMAPS}/life", soon(), uid=created["metadata"]["uid"])
    with pytest.raises(NotFound):
        await api.delete(f"{CONFIGMAPS}/life", soon())


async def test_an_object_that_exists_already_is_a_conflict(api: Client) -> None:
    await api.create(CONFIGMAPS, configmap("twice"), soon())
    with pytest.raises(Conflict):
        await api.create(CONFIGMAPS, configmap("twice"), soon())


async def test_what_the_server_finds_invalid_is_told_in_its_words(api: Client) -> None:
    with pytest.raises(Invalid) as raised:
        await api.create(CONFIGMAPS, configmap("Not A Name"), soon())
    assert "RFC 1123" in raised.value.server_text


@pytest.mark.parametrize(
    "path",
    [
        "/apis/resource.k8s.io/v1alpha1/resourceslices",
        "/apis/example.nvidia.com/v1beta1/namespaces/a/computedomains/b",
    ],
)
async def test_a_path_that_the_server_does_not_know_is_tried_again_and_no_missing_object(
    api: Client, path: str
) -> None:
    with pytest.raises(NotServed) as raised:
        await api.get(path, soon())
    assert isinstance(raised.value, RetryableError)


async def test_a_version_that_is_no_longer_served_is_discovered_anew(
    server: apiserver.ApiServer, api: Client
) -> None:
    assert await api.dra_api_version(soon()) == "v1"
    seen: list[FinishedRequest] = []
    async with client.connect(KubeSettings(str(server.kubeconfig)), seen.append) as another:
        await another.dra_api_version(soon())
        await another.dra_api_version(soon())
        await another.dra_api_version(soon(), stale="v1")
    assert [each.resource for each in seen] == ["discovery", "discovery"]


async def test_a_watch_tells_line_by_line_what_happens(api: Client) -> None:
    listing = await api.get(CONFIGMAPS, soon())
    params = {
        "resourceVersion": listing["metadata"]["resourceVersion"],
        "fieldSelector": "metadata.name=watched",
        "timeoutSeconds": "1",
    }
    kinds = []
    async with asyncio.TaskGroup() as group:
        group.create_task(api.create(CONFIGMAPS, configmap("watched", a="x" * 300_000), soon()))
        async for line in api.watch(CONFIGMAPS, params, soon()):
            event = json.loads(line)
            kinds.append((event["type"], len(event["object"]["data"]["a"])))
    assert kinds == [("ADDED", 300_000)]


async def test_every_attempt_is_observed_by_verb_resource_and_status(
    server: apiserver.ApiServer,
) -> None:
    seen: list[FinishedRequest] = []
    async with client.connect(KubeSettings(str(server.kubeconfig)), seen.append) as api:
        await api.get(CONFIGMAPS, soon(), {"limit": "1"})
        with pytest.raises(NotFound):
            await api.get(f"{CONFIGMAPS}/none", soon())
    assert [(each.verb, each.resource, each.status) for each in seen] == [
        ("GET", "configmaps", 200),
        ("GET", "configmaps", 404),
    ]
    assert all(0 < each.seconds < 5 for each in seen)


async def test_what_we_may_not_do_is_said_with_the_missing_right(
    server: apiserver.ApiServer,
) -> None:
    async with client.connect(KubeSettings(str(certificate(server, "nobody")))) as api:
        with pytest.raises(RetryableError) as raised:
            await api.get(CONFIGMAPS, soon())
    assert raised.value.reason is Reason.API_UNAVAILABLE
    assert 'User "nobody" cannot list resource "configmaps"' in raised.value.message


def certificate(server: apiserver.ApiServer, user: str, group: str = "") -> Path:
    pair = server.signer.client(user, [group] if group else [])
    user_entry = {
        "client-certificate-data": base64.b64encode(pair.certificate).decode(),
        "client-key-data": base64.b64encode(pair.key).decode(),
    }
    path = server.directory / f"{user}.kubeconfig"
    path.write_text(apiserver.kubeconfig(server.url, server.ca_file, user_entry))
    return path


async def test_a_client_certificate_is_good_enough(server: apiserver.ApiServer) -> None:
    kubeconfig = certificate(server, "operator", "system:masters")
    async with client.connect(KubeSettings(str(kubeconfig))) as api:
        assert (await api.get("/api/v1/namespaces/default", soon()))["kind"] == "Namespace"


async def test_an_exec_plugin_is_asked_for_credentials(
    server: apiserver.ApiServer, tmp_path: Path
) -> None:
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": server.token},
    }
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(plugin),
            "interactiveMode": "Never",
        }
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(apiserver.kubeconfig(server.url, server.ca_file, user))
    async with client.connect(KubeSettings(str(kubeconfig))) as api:
        assert (await api.get("/api/v1/namespaces/default", soon()))["kind"] == "Namespace"


async def test_a_token_that_was_replaced_in_its_file_is_read_again_when_refused(
    server: apiserver.ApiServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("expired")
    kubeconfig = tmp_path / "kubeconfig"
    user = {"tokenFile": str(token)}
    kubeconfig.write_text(apiserver.kubeconfig(server.url, server.ca_file, user))
    seen: list[FinishedRequest] = []
    async with client.connect(KubeSettings(str(kubeconfig)), seen.append) as api:
        token.write_text(server.token)
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(api.get("/api/v1/namespaces/default", soon())) for _ in range(4)
            ]
        assert {each.result()["kind"] for each in calls} == {"Namespace"}
    assert sorted(each.status for each in seen) == [200] * 4 + [401] * 4


async def test_a_ca_that_was_rotated_in_its_file_is_read_again_when_the_server_is_not_trusted(
    server: apiserver.ApiServer, tmp_path: Path
) -> None:
    authority = tmp_path / "ca.crt"
    former = Authority("former", datetime.datetime.now(datetime.UTC))
    authority.write_bytes(former.pair.certificate)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(apiserver.kubeconfig(server.url, authority, {"token": server.token}))
    seen: list[FinishedRequest] = []
    async with client.connect(KubeSettings(str(kubeconfig)), seen.append) as api:
        authority.write_bytes(server.ca_file.read_bytes())
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(api.get("/api/v1/namespaces/default", soon())) for _ in range(4)
            ]
        assert {each.result()["kind"] for each in calls} == {"Namespace"}
    assert sorted(each.status for each in seen) == [0] * 4 + [200] * 4


async def test_a_server_that_stays_untrusted_is_reported(
    server: apiserver.ApiServer, tmp_path: Path
) -> None:
    authority = tmp_path / "ca.crt"
    former = Authority("former", datetime.datetime.now(datetime.UTC))
    authority.write_bytes(former.pair.certificate)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(apiserver.kubeconfig(server.url, authority, {"token": server.token}))
    seen: list[FinishedRequest] = []
    async with client.connect(KubeSettings(str(kubeconfig)), seen.append) as api:
        for _ in range(2):
            with pytest.raises(RetryableError, match="certificate verify failed") as raised:
                await api.get("/api/v1/namespaces/default", soon())
            assert raised.value.remedy == "check the cluster's CA in the kubeconfig"
    assert [each.status for each in seen] == [0, 0, 0]


async def test_a_token_that_stays_refused_is_reported(
    server: apiserver.ApiServer, tmp_path: Path
) -> None:
    kubeconfig = server.write_token_kubeconfig("wrong", "wrong")
    seen: list[FinishedRequest] = []
    async with client.connect(KubeSettings(str(kubeconfig)), seen.append) as api:
        for _ in range(2):
            with pytest.raises(RetryableError, match="401"):
                await api.get("/api/v1/namespaces/default", soon())
    assert [each.status for each in seen] == [401, 401, 401]


async def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("clusters: 3")
    for path in (broken, tmp_path / "missing"):
        with pytest.raises(RetryableError, match=path.name):
            async with client.connect(KubeSettings(str(path))):
                pytest.fail("connected without a configuration")


async def test_without_kubeconfig_and_outside_a_pod_the_error_says_what_to_give() -> None:
    with pytest.raises(RetryableError, match="--kubeconfig"):
        async with client.connect(KubeSettings()):
            pytest.fail("connected without a configuration")


def connected(port: CannedServer) -> AbstractAsyncContextManager[Client]:
    return client.connect(KubeSettings(str(port.kubeconfig)))


async def test_an_overloaded_server_is_asked_again_when_it_says_so(tmp_path: Path) -> None:
    busy = http_response("429 Too Many Requests", Retry_After="0")
    async with (
        serve_responses(tmp_path, busy, busy, http_response("200 OK", '{"kind":"Status"}')) as port,
        connected(port) as api,
    ):
        assert await api.get("/api/v1/nodes", soon()) == {"kind": "Status"}


async def test_a_retry_that_would_come_too_late_is_not_waited_for(tmp_path: Path) -> None:
    busy = http_response("429 Too Many Requests", Retry_After="30")
    async with serve_responses(tmp_path, busy) as port, connected(port) as api:
        before = soon(0)
        with pytest.raises(RetryableError, match="429"):
            await api.get("/api/v1/nodes", soon(5))
        assert soon(0) - before < 4


async def test_a_server_that_stays_overloaded_is_left_alone_after_six_attempts(
    tmp_path: Path,
) -> None:
    busy = http_response("429 Too Many Requests", Retry_After="0")
    seen: list[FinishedRequest] = []
    async with (
        serve_responses(tmp_path, *[busy] * 10) as port,
        client.connect(KubeSettings(str(port.kubeconfig)), seen.append) as api,
    ):
        with pytest.raises(RetryableError, match="429"):
            await api.get("/api/v1/nodes", soon())
    assert [each.status for each in seen] == [429] * 6


async def test_a_server_that_says_nothing_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    async with serve_responses(tmp_path) as port, connected(port) as api:
        with pytest.raises(RetryableError, match="no answer in time") as raised:
            await api.get("/api/v1/nodes", soon(0.1))
        assert raised.value.reason is Reason.API_UNAVAILABLE
        assert isinstance(raised.value.__cause__, TimeoutError)


async def test_an_error_of_a_proxy_in_between_is_shown_as_it_is(tmp_path: Path) -> None:
    async with (
        serve_responses(tmp_path, http_response("502 Bad Gateway", "<h1>no upstream</h1>")) as port,
        connected(port) as api,
    ):
        with pytest.raises(RetryableError, match="502: <h1>no upstream</h1>"):
            await api.get("/api/v1/nodes", soon())


async def test_an_answer_that_is_no_json_is_no_answer(tmp_path: Path) -> None:
    async with (
        serve_responses(tmp_path, http_response("200 OK", "<h1>log in first</h1>")) as port,
        connected(port) as api,
    ):
        with pytest.raises(RetryableError, match="is not valid") as raised:
            await api.get("/api/v1/nodes", soon())
        assert raised.value.reason is Reason.API_UNAVAILABLE


DEEP = "[" * 4000 + "]" * 4000


def hostile_claim(parameters: str) -> str:
    """A claim with these opaque parameters, as a canned answer."""
    config = f'{{"opaque":{{"driver":"gpu.nvidia.com","parameters":{parameters}}}}}'
    text = f'{{"metadata":{{"uid":"u"}},"spec":{{"devices":{{"config":[{config}]}}}}}}'
    return http_response("200 OK", text)


GROUP = http_response("200 OK", json.dumps({"versions": [{"version": "v1"}]}))


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        (r'{"a":"\ud800"}', ".a"),
        (f'{{"a":{DEEP}}}', ".a" + "[0]" * 9 + "…"),
        (f'{{"a":{"9" * 5000}}}', ".a"),
        ('{"a":[1,1e999]}', ".a[1]"),
    ],
)
async def test_a_claim_that_exceeds_a_bound_is_an_invalid_config(
    tmp_path: Path, parameters: str, field: str
) -> None:
    async with (
        serve_responses(tmp_path, GROUP, hostile_claim(parameters)) as port,
        connected(port) as api,
    ):
        with pytest.raises(PermanentError) as raised:
            await api.get_claim(ClaimRef("default", "c", ClaimUID("u")), soon())
    assert raised.value.reason is Reason.INVALID_CONFIG
    assert raised.value.facts["field"] == f"spec.devices.config[0].opaque.parameters{field}"
    assert raised.value.facts["field"] in raised.value.message


async def test_a_quantity_beyond_the_bounds_is_an_invalid_config_too(tmp_path: Path) -> None:
    request = {"name": "a", "exactly": {"capacity": {"requests": {"memory": "1e999999999"}}}}
    claim = {"metadata": {"uid": "u"}, "spec": {"devices": {"requests": [request]}}}
    async with (
        serve_responses(tmp_path, GROUP, http_response("200 OK", json.dumps(claim))) as port,
        connected(port) as api,
    ):
        with pytest.raises(PermanentError, match=r"requests\.0\.exactly\.capacity\.") as raised:
            await api.get_claim(ClaimRef("default", "c", ClaimUID("u")), soon())
    assert raised.value.reason is Reason.INVALID_CONFIG


@pytest.mark.parametrize("body", ["[" * 5000, "[]", "1", "null", "9" * 5000, r'"\ud800"', ""])
async def test_an_answer_that_is_no_object_is_no_answer(tmp_path: Path, body: str) -> None:
    answers = (http_response("200 OK", body), GROUP, http_response("200 OK", body))
    async with serve_responses(tmp_path, *answers) as port, connected(port) as api:
        with pytest.raises(RetryableError, match="is not valid"):
            await api.get("/api/v1/nodes", soon())
        with pytest.raises((RetryableError, PermanentError), match="claim"):
            await api.get_claim(ClaimRef("default", "c", ClaimUID("u")), soon())


async def test_of_a_long_answer_only_the_beginning_is_read(tmp_path: Path) -> None:
    """The server of the second and third is done before all of it is sent."""
    failure = http_response("500 Internal Server Error", "x" * (9 << 20))
    endless = http_response("200 OK", "x" * (65 << 20))
    line = http_response("200 OK", '{"type":"' + "x" * (17 << 20))
    async with serve_responses(tmp_path, failure, endless, line) as port, connected(port) as api:
        with pytest.raises(RetryableError) as raised:
            await api.get("/api/v1/nodes", soon(60))
        assert len(str(raised.value)) < 3000
        with pytest.raises(RetryableError, match="more than 67108864 bytes"):
            await api.get("/api/v1/nodes", soon(60))
        with pytest.raises(RetryableError, match="more than 16777216 bytes"):
            async for _ in api.watch("/api/v1/nodes", {}, soon(60)):
                pass


async def test_the_loop_goes_on_while_a_list_that_exceeds_a_bound_is_parsed(
    tmp_path: Path,
) -> None:
    deep = "[" * 201 + "]" * 201
    body = f'{{"items":[{",".join([deep] * 3_000)}]}}'
    ticks = 0

    async def count_ticks() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    async with (
        serve_responses(tmp_path, http_response("200 OK", body)) as port,
        connected(port) as api,
        asyncio.TaskGroup() as group,
    ):
        counting = group.create_task(count_ticks())
        found = await api.get("/api/v1/nodes", soon(120))
        counting.cancel()
    assert len(found["items"]) == 3_000
    # It takes seconds, in which a loop that waits for it ticks a few times, for the bytes.
    assert ticks > 30


async def test_a_server_that_is_not_there_is_named_with_its_address(tmp_path: Path) -> None:
    async with serve_responses(tmp_path) as port:
        pass
    async with connected(port) as api:
        with pytest.raises(RetryableError, match=r"http://127\.0\.0\.1:\d+"):
            await api.get("/api/v1/nodes", soon())


def kept(name: str) -> JsonObject:
    """A template that something keeps, with a document inside that is not in the server's form."""
    parameters = {"kind": "K", "apiVersion": "example.com/v1", "a": [1, 2]}
    config = {"requests": ["r"], "opaque": {"driver": "example.com", "parameters": parameters}}
    request = {"name": "r", "exactly": {"deviceClassName": "c"}}
    return {
        "metadata": {"name": name, "finalizers": ["example.com/keeps"]},
        "spec": {"spec": {"devices": {"requests": [request], "config": [config]}}},
    }


TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"


async def test_a_deletion_returns_what_a_finalizer_keeps(
    api: Client,
) -> None:
    made = await api.create(TEMPLATES, kept("kept"), soon(), normalized=True)
    path = f"{TEMPLATES}/kept"

    answer = await api.delete(path, soon(), uid=made["metadata"]["uid"])
    assert answer["metadata"]["finalizers"] == ["example.com/keeps"]
    assert answer["metadata"]["deletionTimestamp"]
    released = await api.patch(path, {"metadata": {"finalizers": None}}, soon())
    assert "finalizers" not in released["metadata"]
    await api.create(TEMPLATES, {**kept("gone"), "metadata": {"name": "gone"}}, soon())
    gone = await api.delete(f"{TEMPLATES}/gone", soon())
    assert "finalizers" not in gone["metadata"]


async def test_an_embedded_document_in_the_servers_own_form_can_be_patched_around(
    api: Client,
) -> None:
    change = {"metadata": {"labels": {"a": "b"}, "finalizers": None}}
    await api.create(TEMPLATES, kept("as-sent"), soon())
    with pytest.raises(Invalid, match="immutable"):
        await api.patch(f"{TEMPLATES}/as-sent", change, soon())

    await api.create(TEMPLATES, kept("normalized"), soon(), normalized=True)
    stored = await api.patch(f"{TEMPLATES}/normalized", change, soon())
    assert stored["metadata"]["labels"] == {"a": "b"}
