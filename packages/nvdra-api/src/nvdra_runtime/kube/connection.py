# SPDX-License-Identifier: Apache-2.0
"""The connection to one API server: credentials and transport.

The kubernetes package reads the kubeconfig or the pod's service account (exec plugins, client
certificates, token files, in-cluster tokens that it reads again every minute) and creates the
session. This module does not retry.
"""

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import socket
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol, Self

import aiohttp
import yaml
from nvdra_api.errors import Reason, RetryableError

from nvdra_runtime.kube import kubernetes_package, proxy

JSON: Final = "application/json"
YAML: Final = "application/yaml"
METADATA: Final = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST: Final = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Media types of answers with only the metadata of an object, or of those in a list."""

_KEEP_ALIVE_S = 75.0
"""How long an idle connection is kept: less than the API server's 90 s, so that we close it first.
A claim's GET on a kept connection needs no TLS handshake."""

_CONNECT_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10)
"""The bound of one connection attempt. Every call has its own deadline."""

_RELOAD_INTERVAL_S = 5.0
_CLOSE_TIMEOUT_S = 1.0

_KEEPALIVE_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
"""A peer that disappears is detected within a minute, even by an idle watch."""


class KubeFlags(Protocol):
    """The flags of a component that configure the connection (`settings.fields`)."""

    @property
    def kubeconfig(self) -> str: ...  # noqa: D102 - as below
    @property
    def kube_api_qps(self) -> float: ...  # noqa: D102
    @property
    def kube_api_burst(self) -> int: ...  # noqa: D102


@dataclasses.dataclass(frozen=True, slots=True)
class KubeSettings:
    """How to reach the API server.

    Attributes:
        kubeconfig: Path of a kubeconfig, or several joined by `:`; empty means the pod's service
            account.
        qps: Requests per second, on average.
        burst: Requests that may be sent at once.
        user_agent: Our name in the API server's audit log.
    """

    kubeconfig: str = ""
    qps: float = 200
    burst: int = 400
    user_agent: str = "nvdra"

    @classmethod
    def from_flags(cls, flags: KubeFlags, program: str, version: str) -> Self:
        """The settings of these flags, with the user agent `<program>/<version>`."""
        user_agent = f"{program}/{version}"
        return cls(flags.kubeconfig, flags.kube_api_qps, flags.kube_api_burst, user_agent)


class Connection:
    """A session with credentials, which can be read again if the server rejects them."""

    def __init__(self, settings: KubeSettings) -> None:
        self._settings = settings
        self._reload_lock = asyncio.Lock()
        self._reloaded_at = -math.inf
        self._configuration: Any = None
        self._tls_identity: tuple[object, ...] = ()
        self._rest: Any = None
        self._transports: list[tuple[Any, aiohttp.TCPConnector]] = []
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.host = ""
        self.credentials_generation = 0
        """Increases with every reload. It tells whether rejected credentials are still in use."""

    async def open(self) -> None:
        """Read the configuration and create the session.

        Raises:
            RetryableError: ApiUnavailable: The configuration cannot be read or is not valid.
        """
        with _translate_configuration_errors(self._settings):
            configuration = await _load_configuration(self._settings)
            identity = _tls_identity(configuration)
            if identity != self._tls_identity:
                rest, connector = _create_transport(
                    configuration, self._settings.user_agent, self._create_socket
                )
                self._transports.append((rest, connector))
                self._rest = rest
        self._configuration, self._tls_identity = configuration, identity
        self.host = configuration.host

    async def reload_credentials(self, rejected_generation: int) -> bool:
        """Read rejected credentials, or a CA that is out of date, again. Returns whether to retry.

        If several requests are rejected at once, one of them reloads. Within 5 s of a reload there
        is no other one, so that an exec plugin does not run for every request while its credentials
        stay rejected. Requests in progress keep their session.
        """
        async with self._reload_lock:
            if self.credentials_generation != rejected_generation:
                return True
            now = asyncio.get_running_loop().time()
            if now - self._reloaded_at < _RELOAD_INTERVAL_S:
                return False
            self._reloaded_at = now
            await self.open()
            self.credentials_generation += 1
            return True

    async def close(self) -> None:
        """Close every session and socket, so that no TLS shutdown outlives the loop."""
        for rest, connector in self._transports:
            await rest.close()
            await connector.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while any(each.fileno() >= 0 for each in self._sockets):  # noqa: ASYNC110 - no hook
                    await asyncio.sleep(0.001)

    def _create_socket(self, address: Any) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        for level, option, value in _KEEPALIVE_OPTIONS:
            made.setsockopt(level, option, value)
        self._sockets.add(made)
        return made

    async def request(
        self,
        verb: str,
        target: str,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> aiohttp.ClientResponse:
        """Send one request. The caller reads and releases the response.

        Args:
            verb: HTTP method.
            target: Path and query, encoded.
            body: A JSON value, or None.
            content_type: Content type of the body. YAML is written as JSON, which is valid YAML.
            accept: Media type of the answer.
        """
        if content_type == YAML:
            body = json.dumps(body)  # the kubernetes package writes JSON only
        headers = {"Content-Type": content_type, "Accept": accept}
        with _translate_configuration_errors(self._settings):  # it may read the token's file
            token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token
        response = await self._rest.request(
            verb, self.host + target, headers=headers, body=body, _request_timeout=_CONNECT_TIMEOUT
        )
        raw: aiohttp.ClientResponse = response.response
        return raw


@contextlib.contextmanager
def _translate_configuration_errors(settings: KubeSettings) -> Iterator[None]:
    """Raise an error that names the source of an invalid configuration.

    The kubernetes package does not validate a kubeconfig, so an invalid one raises any of these.
    """
    shapes = (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)
    try:
        yield
    except (kubernetes_package.ConfigException, OSError, *shapes) as error:
        where = settings.kubeconfig or "the pod's service account"
        raise RetryableError(
            Reason.API_UNAVAILABLE,
            f"no valid API server configuration in {where}: {error}",
            "set --kubeconfig, or run in a pod with a service account",
        ) from error


async def _load_configuration(settings: KubeSettings) -> Any:
    configuration = kubernetes_package.Configuration()
    if settings.kubeconfig:
        _require_file(settings.kubeconfig)
        await kubernetes_package.load_kube_config(
            settings.kubeconfig, client_configuration=configuration, persist_config=False
        )
    else:
        kubernetes_package.load_incluster_config(client_configuration=configuration)
    # aiohttp's `trust_env` would read ~/.netrc in a thread for every request.
    proxies = urllib.request.getproxies_environment()
    configuration.proxy = configuration.proxy or proxy.find(configuration.host, proxies)
    return configuration


def _require_file(kubeconfig: str) -> None:
    if not any(Path(path).expanduser().is_file() for path in kubeconfig.split(os.pathsep)):
        raise FileNotFoundError("no such file")


def _tls_identity(configuration: Any) -> tuple[object, ...]:
    """Everything that a TLS session depends on. If it changes, a new session is created."""
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return (
        configuration.host,
        configuration.verify_ssl,
        configuration.tls_server_name,
        configuration.proxy,
        *(Path(file).read_bytes() if file else b"" for file in files),
    )


def _create_transport(
    configuration: Any, user_agent: str, make_socket: Callable[[Any], socket.socket]
) -> tuple[Any, aiohttp.TCPConnector]:
    """The kubernetes package's transport, over a connector that keeps connections.

    The package does not close the connector; `Connection.close` does.
    """
    rest = kubernetes_package.RESTClientObject(configuration)
    connector = aiohttp.TCPConnector(
        limit=0, ssl=rest.ssl_context, keepalive_timeout=_KEEP_ALIVE_S, socket_factory=make_socket
    )
    configuration.client_session_kwargs = {
        "connector": connector,
        "cookie_jar": aiohttp.DummyCookieJar(),
        "headers": {"User-Agent": user_agent},
        "trust_env": False,
    }
    return rest, connector
