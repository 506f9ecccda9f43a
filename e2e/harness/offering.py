"""A driver that a test plays itself at the door of a lab's kubelet: it registers as it is told to.

Its sockets lie in the node's own directories, which this machine sees too, and answer from the
test's process. It prepares every claim with no device. What a driver over nvdra-api does is
`second`'s to show; nothing here is an example of how to write one.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from cluster import Cluster
from nvdra_api.protocol import registration
from nvdra_api.runtime._generated.dra.v1 import api_pb2 as dra
from nvdra_api.runtime._generated.pluginregistration.v1 import api_pb2 as reg

KUBELET = Path("/var/lib/kubelet")
SERVICES = {"v1": registration.DRA_V1, "v1beta1": registration.DRA_V1BETA1}
BOTH = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
WORKERS = 4


@dataclass
class Offer:
    """One registration socket, and a DRA service behind it that need not be there.

    Attributes:
        root: The kubelet's root directory, as this machine sees it.
        driver: The name that is registered.
        versions: The services that are advertised.
        name: Of the sockets; the driver's unless two of its instances are offered.
        endpoint: Of the DRA service, as the node sees it.
        faults: gRPC method → how many of its next calls fail.
        asked: How often GetInfo was called.
        verdicts: What NotifyRegistrationStatus was told: the error, empty for success.
        calls: What the DRA service was called for, as `v1 NodePrepareResources`.
    """

    root: Path
    driver: str
    versions: tuple[str, ...] = BOTH
    name: str = ""
    endpoint: str = ""
    faults: dict[str, int] = field(default_factory=dict)
    asked: int = 0
    verdicts: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    _registration: grpc.Server | None = None
    _service: grpc.Server | None = None

    def __post_init__(self) -> None:
        self.name = self.name or self.driver
        self.endpoint = self.endpoint or str(KUBELET / "plugins" / self.name / "dra.sock")

    def offer(self) -> None:
        """Open the registration socket."""
        handlers = [self._registration_handler()]
        if self._is_common:
            handlers += self._dra_handlers()
        self._registration = _serving(self._socket, handlers)

    def withdraw(self) -> None:
        """Remove the registration socket."""
        _stop(self._registration)

    def serve(self) -> None:
        """Open the DRA socket."""
        path = self.root / Path(self.endpoint).relative_to(KUBELET)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._service = _serving(path, self._dra_handlers())

    def die(self) -> None:
        """Close the DRA socket and its connections; the registration socket stays."""
        _stop(self._service)

    def share_one_socket(self) -> "Offer":
        """Answer both services on the registration socket."""
        self.endpoint = str(KUBELET / self._socket.relative_to(self.root))
        return self

    @property
    def _socket(self) -> Path:
        return self.root / "plugins_registry" / f"{self.name}-reg.sock"

    @property
    def _is_common(self) -> bool:
        return Path(self.endpoint).name == self._socket.name

    def _registration_handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            registration.REGISTRATION_SERVICE,
            {
                "GetInfo": _unary(self._get_info, reg.InfoRequest, reg.PluginInfo),
                "NotifyRegistrationStatus": _unary(
                    self._notify, reg.RegistrationStatus, reg.RegistrationStatusResponse
                ),
            },
        )

    def _dra_handlers(self) -> list[grpc.GenericRpcHandler]:
        return [self._dra_handler(version, service) for version, service in SERVICES.items()]

    def _dra_handler(self, version: str, service: str) -> grpc.GenericRpcHandler:
        def prepare(request: Any, _: grpc.ServicerContext) -> Any:
            self.calls.append(f"{version} NodePrepareResources")
            answer = dra.NodePrepareResourceResponse()
            claims = {claim.uid: answer for claim in request.claims}
            return dra.NodePrepareResourcesResponse(claims=claims)

        def unprepare(request: Any, _: grpc.ServicerContext) -> Any:
            self.calls.append(f"{version} NodeUnprepareResources")
            answer = dra.NodeUnprepareResourceResponse()
            claims = {claim.uid: answer for claim in request.claims}
            return dra.NodeUnprepareResourcesResponse(claims=claims)

        methods = {
            "NodePrepareResources": _unary(
                prepare, dra.NodePrepareResourcesRequest, dra.NodePrepareResourcesResponse
            ),
            "NodeUnprepareResources": _unary(
                unprepare, dra.NodeUnprepareResourcesRequest, dra.NodeUnprepareResourcesResponse
            ),
        }
        return grpc.method_handlers_generic_handler(service, methods)

    def _get_info(self, _: Any, context: grpc.ServicerContext) -> Any:
        self.asked += 1
        self._may_fail("GetInfo", context)
        return reg.PluginInfo(
            type=registration.PLUGIN_TYPE,
            name=self.driver,
            endpoint=self.endpoint,
            supported_versions=self.versions,
        )

    def _notify(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.verdicts.append("" if request.plugin_registered else request.error)
        self._may_fail("NotifyRegistrationStatus", context)
        return reg.RegistrationStatusResponse()

    def _may_fail(self, method: str, context: grpc.ServicerContext) -> None:
        if self.faults.get(method):
            self.faults[method] -= 1
            context.abort(grpc.StatusCode.INTERNAL, "not now")


@contextlib.contextmanager
def door(cluster: Cluster, node: str) -> Iterator[Callable[..., Offer]]:
    """Make offers on a node; they are withdrawn when the block is left."""
    offers: list[Offer] = []
    with tempfile.TemporaryDirectory() as directory:
        # A socket's path may have 107 bytes.
        root = Path(directory, "k")
        root.symlink_to(cluster.lab.folder / "machines" / node / "var-lib/kubelet")

        def make(driver: str, *versions: str, **how: Any) -> Offer:
            offers.append(Offer(root, driver, versions or BOTH, **how))
            return offers[-1]

        try:
            yield make
        finally:
            for offer in offers:
                offer.withdraw()
                offer.die()


def _serving(path: Path, handlers: list[grpc.GenericRpcHandler]) -> grpc.Server:
    server = grpc.server(ThreadPoolExecutor(WORKERS), handlers=handlers)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


def _stop(server: grpc.Server | None) -> None:
    if server is not None:
        server.stop(grace=None).wait()


def _unary(
    handle: Callable[..., Any], request: Any, answer: Any
) -> "grpc.RpcMethodHandler[Any, Any]":
    return grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=request.FromString,
        response_serializer=answer.SerializeToString,
    )
