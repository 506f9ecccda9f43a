# SPDX-License-Identifier: Apache-2.0
"""The plugins, as processes: claims as the API server returns and stores them, and gRPC messages.

The API server is real. A proxy in front of it answers for one claim, the tenant's, with the bytes
of the case; everything else it passes on. The fuzzer is the kubelet.
"""

import asyncio
import atexit
import contextlib
import functools
import json
import struct
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

import grpc
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from nvdra_api.errors import Reason
from nvdra_api.ids import ClaimUID
from nvdra_api.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime._generated.dra.v1 import api_pb2 as dra
from nvdra_runtime.kubeletplugin import registration

from nvdra_testing.control_plane import apiserver, domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.faults import api_proxy
from nvdra_testing.faults.api_proxy import Fault
from nvdra_testing.fuzzing import configs, documents, go_json
from nvdra_testing.fuzzing.target import Program, Target
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.node import plugin
from nvdra_testing.node.domain_rig import DomainRig
from nvdra_testing.node.rig import SLICES, Rig

_NODE: Final = "fuzzed"
_TENANT: Final = ClaimRef("default", "tenant", ClaimUID("22222222-3333-4444-8555-666666666666"))
_POD_UID: Final = "77777777-3333-4444-8555-666666666666"
"""Stands in cases for the UID of the pod, which the API server chooses."""
_TIMEOUTS_S: Final = (0.3, 2.0, 8.0, 60.0)
"""Of a call and its repetitions, should the machine be busy. What can be waited for is waited for
for most of that time, so the first call has little."""
_PATIENT_S: Final = (20.0, 60.0)
"""The same for what need not be waited for, such as an unprepare: a busy machine makes no other
answer of it. Of a call of 0.3 s the plugin says after 0.225 s that it is not done yet; an unprepare
takes 2 ms, at most 92 of 3,103, but with 24 busy processes beside it 11 of 971 took up to 1.4 s."""
_UNLIMITED: Final = ("--kube-api-qps=10000", "--kube-api-burst=20000")
_START_S: Final = 120


@dataclass(frozen=True)
class _Kind:
    """One plugin.

    Attributes:
        driver: Its driver name.
        profile: The node's hardware.
        flags: Of the plugin.
        device: What the tenant's claim has.
        other: What the other tenant's claim has.
        configs: Valid configs of the tenant's claim.
    """

    driver: str
    profile: str
    flags: tuple[str, ...]
    device: str
    other: str
    configs: Sequence[dict[str, Any]]


_GPU: Final = _Kind(
    GPU_DRIVER,
    "dgx-h100",
    ("--feature-gates=TimeSlicingSettings=true,DeviceMetadata=true",),
    "gpu-7",
    "gpu-0",
    configs.GPU,
)
_DOMAIN: Final = _Kind(
    COMPUTE_DOMAIN_DRIVER, "gb200-nvl72", (), "channel-0", "channel-0", configs.DOMAINS
)


@functools.cache
def _server() -> ApiServer:
    """One API server for all targets, until the process ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    directory = stack.enter_context(TemporaryDirectory(prefix="fuzz-", dir="/dev/shm"))
    server = stack.enter_context(apiserver.run_apiserver(Path(directory)))
    domain_objects.install_crds(server)
    return server


class _Failure(ConnectionError):
    """A call failed as a whole."""

    def __init__(self, error: grpc.RpcError) -> None:
        super().__init__(f"{error.code()}: {error.details()}")
        self.code = error.code()
        self.is_of_connection = self.code in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
        )


@dataclass
class _Plugin:
    """A plugin on its node. Its coroutines run on a loop in a thread of their own."""

    kind: _Kind
    send: "Callable[[_Plugin, bytes], str]"
    rig: Rig
    answer: Fault
    pod_uid: str
    channel: grpc.Channel
    other: ClaimRef
    expected: str = ""

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        return self.rig.process.process

    @property
    def log(self) -> Path:
        return self.rig.process.log

    def exchange(self, case: bytes) -> str:
        return self.send(self, case)

    def ask_as_another(self) -> str:
        """Prepare and unprepare the claim of another tenant."""
        error = self.prepare(self.other, _PATIENT_S).partition(":")[0]
        if error != self.expected:
            return f"another tenant's claim is answered with {error!r}, not {self.expected!r}"
        return self.unprepare(self.other)

    def prepare(self, claim: ClaimRef, timeouts_s: Sequence[float] = _TIMEOUTS_S) -> str:
        """The error for the claim; empty if it is prepared."""
        request = dra.NodePrepareResourcesRequest(claims=[_message(claim)])
        sent = request.SerializeToString()
        answer = self.call("NodePrepareResources", sent, timeouts_s=timeouts_s)
        found = dra.NodePrepareResourcesResponse.FromString(answer).claims
        return found[claim.uid].error if claim.uid in found else "the claim is not in the answer"

    def unprepare(self, claim: ClaimRef) -> str:
        """The error for the claim; empty if it is unprepared."""
        request = dra.NodeUnprepareResourcesRequest(claims=[_message(claim)])
        sent = request.SerializeToString()
        answer = self.call("NodeUnprepareResources", sent, timeouts_s=_PATIENT_S)
        found = dra.NodeUnprepareResourcesResponse.FromString(answer).claims
        return found[claim.uid].error if claim.uid in found else "the claim is not in the answer"

    def call(
        self,
        method: str,
        request: bytes,
        service: str = registration.DRA_V1,
        timeouts_s: Sequence[float] = _TIMEOUTS_S,
    ) -> bytes:
        """Send bytes to a method, and return those of the answer."""
        sending: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            f"/{service}/{method}"
        )
        for timeout_s in timeouts_s:
            try:
                return bytes(sending(request, timeout=timeout_s))
            except grpc.RpcError as error:
                failure = _Failure(error)
                if failure.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise failure from error
        raise failure

    def tenant(self, claim: ClaimRef) -> str:
        """Prepare and unprepare the tenant's claim. Returns what is wrong with the answers."""
        refused = self.prepare(claim)
        wrong = _wrong(refused)
        left = self.unprepare(claim)
        return wrong or (f"not unprepared: {left}" if left else "")


def _message(claim: ClaimRef) -> dra.Claim:
    return dra.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def _wrong(error: str) -> str:
    """Why a refusal explains nothing; empty if it does."""
    reason = error.partition(":")[0]
    if not error or (reason in tuple(Reason) and reason != Reason.INTERNAL):
        return ""
    return error


def _send_claim(running: _Plugin, case: bytes) -> str:
    """The bytes are the claim, as the API server returns it."""
    running.answer.body = case.replace(_POD_UID.encode(), running.pod_uid.encode())
    return running.tenant(_TENANT)


def _send_stored_parameters(running: _Plugin, case: bytes) -> str:
    """The bytes are opaque parameters of a claim that the API server stores as they are."""
    server, name = running.rig.server, f"stored-{uuid4().hex}"
    try:
        claim = _stored_claim(running, name, case)
    except urllib.error.HTTPError as error:
        refusal = error.read()
        if b"cannot unmarshal number" in refusal:  # one that is no float64 of Go's is never stored
            return ""
        return f"the API server refuses it: {refusal[:900]!r}"
    except OSError:  # the API server has closed the connection: there is no claim
        return ""
    try:
        return running.tenant(claim)
    finally:
        with contextlib.suppress(OSError):
            _send_bytes(server, "DELETE", f"{plugin.CLAIMS}/{name}")


def _stored_claim(running: _Plugin, name: str, parameters: bytes) -> ClaimRef:
    """A claim that is allocated with these parameters. An allocation cannot be changed later."""
    server, wanted, mark = running.rig.server, _claims(running.kind)[0], {"mark": name}
    body = {"metadata": {"name": name}, "spec": wanted["spec"]}
    created = server.create(plugin.CLAIMS, body)
    status = wanted["status"]
    config = [plugin.opaque_config(mark, driver=running.kind.driver)]
    status["allocation"]["devices"]["config"] = config
    status["reservedFor"][0]["uid"] = running.pod_uid
    text = json.dumps({**created, "status": status}).encode()
    stored = text.replace(json.dumps(mark).encode(), parameters)
    _send_bytes(server, "PUT", f"{plugin.CLAIMS}/{name}/status", stored)
    return ClaimRef("default", name, ClaimUID(created["metadata"]["uid"]))


def _send_bytes(server: ApiServer, verb: str, path: str, body: bytes = b"") -> None:
    """Send a request whose body, and whose answer, Python may not be able to decode."""
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, body or None, headers, method=verb)
    with urllib.request.urlopen(request, context=server.ssl_context()):
        pass


_METHODS: Final = ("NodePrepareResources", "NodeUnprepareResources")
_SERVICES: Final = (registration.DRA_V1, registration.DRA_V1BETA1)


def _send_message(running: _Plugin, case: bytes) -> str:
    """The first byte says where the others are sent."""
    number = case[0] if case else 0
    method, service = _METHODS[number % 2], _SERVICES[number // 2 % 2]
    try:
        running.call(method, case[1:], service)
    except _Failure as error:
        if error.is_of_connection:
            raise
        is_undecodable = "google.protobuf.message.DecodeError" in str(error)
        return "" if error.code is not grpc.StatusCode.UNKNOWN or is_undecodable else str(error)
    return ""


@contextmanager
def _plugin(kind: _Kind, send: Callable[[_Plugin, bytes], str]) -> Iterator[Program]:
    """A plugin on a new node."""
    server = _server()
    _forget_node(server, kind)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # connections to a program that was killed
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, Any], timeout_s: float = _START_S) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(timeout_s)

    stop = asyncio.Event()
    started: asyncio.Future[_Plugin] = loop.create_future()
    living = asyncio.run_coroutine_threadsafe(_live(server, kind, send, started, stop), loop)
    try:
        running: _Plugin = run(_first(started, living))
        running.expected = running.prepare(running.other, _PATIENT_S).partition(":")[0]
        yield running
    finally:
        loop.call_soon_threadsafe(stop.set)
        with contextlib.suppress(Exception):  # whatever the program did, it is gone
            living.result(_START_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_START_S)
        loop.close()


async def _first(started: "asyncio.Future[_Plugin]", living: Any) -> "_Plugin":
    while not started.done():
        if living.done():
            living.result()
        await asyncio.sleep(0.05)
    return await started


async def _live(
    server: ApiServer,
    kind: _Kind,
    send: Callable[[_Plugin, bytes], str],
    started: "asyncio.Future[_Plugin]",
    stop: asyncio.Event,
) -> None:
    """Run the node, the kubelet, the proxy and the plugin, all in one task."""
    async with AsyncExitStack() as stack:
        name = stack.enter_context(TemporaryDirectory(prefix="fz-", dir="/dev/shm"))
        directory = Path(name)
        node = stack.enter_context(plugin.simulated_node(directory, _NODE, kind.profile))
        plugin.create_node_object(server, _NODE)
        pod = _pod(server)
        kubelet = await stack.enter_async_context(kubelet_client.run_kubelet(node.kubelet))
        proxy = await stack.enter_async_context(api_proxy.run_proxy(server, directory))
        answer = stack.enter_context(
            proxy.inject(rf"GET .*/resourceclaims/{_TENANT.name}$", status=200, body=b"{}")
        )
        proxied = replace(server, kubeconfig=proxy.kubeconfig)
        plugins = ExitStack()
        rig: Rig
        if kind is _GPU:
            rig = Rig(proxied, node, kubelet, plugins)
        else:
            namespace = domain_objects.create_namespace(server, "nvdra")
            rig = DomainRig(proxied, node, kubelet, plugins, namespace=namespace)
        try:
            await rig.start(*kind.flags, *_UNLIMITED)
            options = [("grpc.default_authority", "localhost"), ("grpc.enable_retries", 0)]
            channel = stack.enter_context(
                grpc.insecure_channel(f"unix:{rig.dra.endpoint}", options=options)
            )
            other = rig.create_claim(kind.other, driver=kind.driver, name=f"other-{uuid4().hex}")
            started.set_result(_Plugin(kind, send, rig, answer, pod, channel, other))
            await stop.wait()
        finally:
            process = rig.process.process if hasattr(rig, "process") else None
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
            plugins.close()


def _pod(server: ApiServer) -> str:
    """The tenant's pod, which Events are about. Returns its UID."""
    body = {
        "metadata": {"name": "tenant"},
        "spec": {"nodeName": _NODE, "containers": [{"name": "c", "image": "i"}]},
    }
    path = "/api/v1/namespaces/default/pods"
    with contextlib.suppress(urllib.error.HTTPError):
        return str(server.request("GET", f"{path}/tenant")["metadata"]["uid"])
    return str(server.create(path, body)["metadata"]["uid"])


def _forget_node(server: ApiServer, kind: _Kind) -> None:
    """Delete what a former plugin has left: there is no controller that would."""
    for path in (f"/api/v1/nodes/{_NODE}",):
        with contextlib.suppress(urllib.error.HTTPError):
            server.request("DELETE", path)
    for found in server.request("GET", SLICES)["items"]:
        if found["spec"]["driver"] == kind.driver:
            server.request("DELETE", f"{SLICES}/{found['metadata']['name']}")


def _claims(kind: _Kind) -> list[dict[str, Any]]:
    """The tenant's claim, with each of the configs, as an API server returns it."""
    result = {"request": "gpu", "driver": kind.driver, "pool": _NODE, "device": kind.device}
    return [
        {
            "kind": "ResourceClaim",
            "apiVersion": "resource.k8s.io/v1",
            "metadata": {
                "name": _TENANT.name,
                "namespace": _TENANT.namespace,
                "uid": _TENANT.uid,
                "resourceVersion": "17",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
                "finalizers": ["resource.kubernetes.io/delete-protection"],
            },
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": "gpu",
                            "exactly": {"deviceClassName": kind.driver, "count": 1},
                        }
                    ],
                    "config": [],
                }
            },
            "status": {
                "allocation": {
                    "devices": {
                        "results": [result],
                        "config": [plugin.opaque_config(each, driver=kind.driver)] if each else [],
                    },
                    "nodeSelector": {
                        "nodeSelectorTerms": [
                            {
                                "matchFields": [
                                    {"key": "metadata.name", "operator": "In", "values": [_NODE]}
                                ]
                            }
                        ]
                    },
                    "allocationTimestamp": "2026-01-01T00:00:00Z",
                },
                "reservedFor": [{"resource": "pods", "name": "tenant", "uid": _POD_UID}],
            },
        }
        for each in ({}, *kind.configs)
    ]


def _field(number: int, data: bytes) -> bytes:
    """A field of a protobuf message with a length."""
    length, text = len(data), bytes([number << 3 | 2])
    while length >= 0x80:
        text += bytes([length & 0x7F | 0x80])
        length >>= 7
    return text + bytes([length]) + data


@st.composite
def _messages(draw: DrawFn) -> bytes:
    """Requests with any bytes where names belong, and damaged ones."""
    first = struct.pack("B", draw(st.integers(0, 3)))
    claims = b""
    for _ in range(draw(documents.sizes(20))):
        texts = [
            draw(documents.names()) if draw(st.booleans()) else known.encode()
            for known in (_TENANT.namespace, _TENANT.uid, "gone")
        ]
        claims += _field(1, b"".join(_field(at, text) for at, text in enumerate(texts, 1)))
    if draw(st.integers(0, 3)) == 0:
        claims = draw(documents.damaged(claims))
    return first + claims


def _encoded(values: Sequence[Any]) -> list[bytes]:
    return [json.dumps(each).encode() for each in values]


_VALID_MESSAGE: Final = (
    b"\0"
    + dra.NodePrepareResourcesRequest(
        claims=[_message(_TENANT._replace(name="gone"))]
    ).SerializeToString()
)

TARGETS: Final = (
    Target(
        "gpu-claim",
        documents.mutations(_claims(_GPU)),
        _encoded(_claims(_GPU)),
        lambda: _plugin(_GPU, _send_claim),
        4.0,
    ),
    Target(
        "gpu-stored-parameters",
        documents.mutations(_GPU.configs).filter(go_json.is_storable),
        _encoded(_GPU.configs),
        lambda: _plugin(_GPU, _send_stored_parameters),
        4.0,
    ),
    Target(
        "kubelet-message",
        _messages(),
        [_VALID_MESSAGE],
        lambda: _plugin(_GPU, _send_message),
        2.0,
    ),
    Target(
        "domain-claim",
        documents.mutations(_claims(_DOMAIN)),
        _encoded(_claims(_DOMAIN)),
        lambda: _plugin(_DOMAIN, _send_claim),
        3.0,
    ),
)
