# SPDX-License-Identifier: Apache-2.0
"""A driver that the test itself serves to the kubelet of a lab, with any registration.

Its sockets are in the node's directories, which this machine can see, and are served by the test's
process. It prepares every claim without devices. `second_driver` shows a driver that is built on
nvdra-api; this one is no example.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from nvdra_runtime._generated.dra.v1 import api_pb2 as dra
from nvdra_runtime._generated.pluginregistration.v1 import api_pb2 as reg
from nvdra_runtime.kubeletplugin import registration

from nvdra_testing.cluster.installation import Cluster

KUBELET = Path("/var/lib/kubelet")
SERVICES = {"v1": registration.DRA_V1, "v1beta1": registration.DRA_V1BETA1}
BOTH_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
WORKERS = 4


@dataclass
class FakeDriver:
    """One registration socket, and a DRA service that may be missing.

    Attributes:
        root: The kubelet's root directory, as this machine sees it.
        driver: The name to register.
        versions: The service versions to advertise.
        name: The name of the sockets; by default that of the driver.
        endpoint: The path of the DRA service, as the node sees it.
        failing_calls: gRPC method → how many of its next calls fail.
        get_info_count: The number of calls of GetInfo.
        registration_errors: The errors in NotifyRegistrationStatus; empty for success.
        calls: The calls of the DRA service, such as `v1 NodePrepareResources`.
    """

    root: Path
    driver: str
    versions: tuple[str, ...] = BOTH_VERSIONS
    name: str = ""
    endpoint: str = ""
    failing_calls: dict[str, int] = field(default_factory=dict)
    get_info_count: int = 0
    registration_errors: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    _registration: grpc.Server | None = None
    _service: grpc.Server | None = None

    def __post_init__(self) -> None:
        self.name = self.name or self.driver
        self.endpoint = self.endpoint or str(KUBELET / "plugins" / self.name / "dra.sock")

    def open_registration_socket(self) -> None:
        """Open the registration socket."""
        handlers = [self._registration_handler()]
        if self._shares_socket:
            handlers += self._dra_handlers()
        self._registration = _start_server(self._socket, handlers)

    def close_registration_socket(self) -> None:
        """Remove the registration socket."""
        _stop(self._registration)

    def open_dra_socket(self) -> None:
        """Open the DRA socket."""
        path = self.root / Path(self.endpoint).relative_to(KUBELET)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._service = _start_server(path, self._dra_handlers())

    def close_dra_socket(self) -> None:
        """Close the DRA socket and its connections; the registration socket stays."""
        _stop(self._service)

    def share_one_socket(self) -> "FakeDriver":
        """Serve both services on the registration socket."""
        self.endpoint = str(KUBELET / self._socket.relative_to(self.root))
        return self

    @property
    def _socket(self) -> Path:
        return self.root / "plugins_registry" / f"{self.name}-reg.sock"

    @property
    def _shares_socket(self) -> bool:
        return Path(self.endpoint).name == self._socket.name

    def _registration_handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            registration.REGISTRATION_SERVICE,
            {
                "GetInfo": _unary_handler(self._get_info, reg.InfoRequest, reg.PluginInfo),
                "NotifyRegistrationStatus": _unary_handler(
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
            "NodePrepareResources": _unary_handler(
                prepare, dra.NodePrepareResourcesRequest, dra.NodePrepareResourcesResponse
            ),
            "NodeUnprepareResources": _unary_handler(
                unprepare, dra.NodeUnprepareResourcesRequest, dra.NodeUnprepareResourcesResponse
            ),
        }
        return grpc.method_handlers_generic_handler(service, methods)

    def _get_info(self, _: Any, context: grpc.ServicerContext) -> Any:
        self.get_info_count += 1
        self._fail_if_told("GetInfo", context)
        return reg.PluginInfo(
            type=registration.PLUGIN_TYPE,
            name=self.driver,
            endpoint=self.endpoint,
            supported_versions=self.versions,
        )

    def _notify(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.registration_errors.append("" if request.plugin_registered else request.error)
        self._fail_if_told("NotifyRegistrationStatus", context)
        return reg.RegistrationStatusResponse()

    def _fail_if_told(self, method: str, context: grpc.ServicerContext) -> None:
        if self.failing_calls.get(method):
            self.failing_calls[method] -= 1
            context.abort(grpc.StatusCode.INTERNAL, "not now")


@contextlib.contextmanager
def fake_drivers(cluster: Cluster, node: str) -> Iterator[Callable[..., FakeDriver]]:
    """Create drivers on a node; their sockets are closed when the block is left."""
    offers: list[FakeDriver] = []
    with tempfile.TemporaryDirectory() as directory:
        # The path of a socket has at most 107 bytes.
        root = Path(directory, "k")
        root.symlink_to(cluster.lab.folder / "machines" / node / "var-lib/kubelet")

        def make(driver: str, *versions: str, **how: Any) -> FakeDriver:
            offers.append(FakeDriver(root, driver, versions or BOTH_VERSIONS, **how))
            return offers[-1]

        try:
            yield make
        finally:
            for offer in offers:
                offer.close_registration_socket()
                offer.close_dra_socket()


def _start_server(path: Path, handlers: list[grpc.GenericRpcHandler]) -> grpc.Server:
    server = grpc.server(ThreadPoolExecutor(WORKERS), handlers=handlers)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


def _stop(server: grpc.Server | None) -> None:
    if server is not None:
        server.stop(grace=None).wait()


def _unary_handler(
    handle: Callable[..., Any], request: Any, answer: Any
) -> "grpc.RpcMethodHandler[Any, Any]":
    return grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=request.FromString,
        response_serializer=answer.SerializeToString,
    )
