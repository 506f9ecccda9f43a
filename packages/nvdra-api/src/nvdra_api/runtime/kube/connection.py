"""One API server, as a kubeconfig or a pod's service account names it: credentials and transport.

The kubernetes package reads the configuration (exec plugins, client certificates, token files,
in-cluster tokens that it re-reads every minute) and makes the session; nothing above this module
knows of it. No retries here.
"""

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import socket
import urllib.parse
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, Self

import aiohttp
import yaml

from nvdra_api.runtime.kube import package
from nvdra_api.types.errors import Reason, RetryableError

YAML = "application/yaml"

_KEEP_ALIVE_S = 75.0
"""How long an idle connection is kept: less than the API server's own 90 s, so that we, not it,
close first. A claim's GET on a kept connection costs no TLS handshake."""

_CONNECT = aiohttp.ClientTimeout(total=None, sock_connect=10)
"""Every call has its own deadline; this bounds one connection attempt within it."""

_RENEWAL_PAUSE_S = 5.0
_GOODBYE_S = 1.0

_KEEPALIVE_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
"""A peer that vanished without a word is noticed within a minute, also by an idle watch."""


class KubeFlags(Protocol):
    """What a component's settings say of it (`process.fields`)."""

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
        kubeconfig: Path of a kubeconfig, several joined by `:`; empty means the pod's own service
            account.
        qps: Requests a second that we allow ourselves in the long run.
        burst: Requests that may go out at once.
        user_agent: Who we are in the API server's audit log.
    """

    kubeconfig: str = ""
    qps: float = 200
    burst: int = 400
    user_agent: str = "nvdra"

    @classmethod
    def of(cls, flags: KubeFlags, program: str, version: str) -> Self:
        """As the flags say; in the audit log we are `<program>/<version>`."""
        user_agent = f"{program}/{version}"
        return cls(flags.kubeconfig, flags.kube_api_qps, flags.kube_api_burst, user_agent)


class Connection:
    """A session with credentials; the credentials are read again when the server refuses them."""

    def __init__(self, settings: KubeSettings) -> None:
        self._settings = settings
        self._renewing = asyncio.Lock()
        self._renewed_at = -math.inf
        self._configuration: Any = None
        self._identity: tuple[object, ...] = ()
        self._rest: Any = None
        self._open: list[tuple[Any, aiohttp.TCPConnector]] = []
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.host = ""
        self.generation = 0
        """Grows with every renewal: tells whether refused credentials are still the current."""

    async def open(self) -> None:
        """Read the configuration and make ready to connect.

        Raises:
            RetryableError: ApiUnavailable: the configuration cannot be read or makes no sense.
        """
        with _usable(self._settings):
            configuration = await _load(self._settings)
            identity = _identity(configuration)
            if identity != self._identity:
                rest, connector = _transport(configuration, self._settings.user_agent, self._socket)
                self._open.append((rest, connector))
                self._rest = rest
        self._configuration, self._identity = configuration, identity
        self.host = configuration.host

    async def renew(self, refused: int) -> bool:
        """Re-read refused credentials; is a second attempt worth it?

        Of several callers refused together one re-reads; within 5 s of a renewal nobody does, so
        that credentials that stay refused do not run an exec plugin for every request. Calls under
        way keep the session they have.
        """
        async with self._renewing:
            if self.generation != refused:
                return True
            now = asyncio.get_running_loop().time()
            if now - self._renewed_at < _RENEWAL_PAUSE_S:
                return False
            self._renewed_at = now
            await self.open()
            self.generation += 1
            return True

    async def close(self) -> None:
        """Close every session and socket; none outlives the loop in a TLS goodbye."""
        for rest, connector in self._open:
            await rest.close()
            await connector.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                while any(each.fileno() >= 0 for each in self._sockets):  # noqa: ASYNC110 - no hook
                    await asyncio.sleep(0.001)

    def _socket(self, address: Any) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        for level, option, value in _KEEPALIVE_OPTIONS:
            made.setsockopt(level, option, value)
        self._sockets.add(made)
        return made

    async def request(
        self, verb: str, target: str, body: Any = None, content_type: str = "application/json"
    ) -> aiohttp.ClientResponse:
        """Send one request; the caller reads and releases the response.

        Args:
            verb: HTTP method.
            target: Path and query, encoded.
            body: What JSON says, or None.
            content_type: Of the body; as YAML it is the same JSON, which YAML contains.
        """
        if content_type == YAML:
            body = json.dumps(body)  # the package writes JSON by itself, and YAML not at all
        headers = {"Content-Type": content_type}
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token
        response = await self._rest.request(
            verb, self.host + target, headers=headers, body=body, _request_timeout=_CONNECT
        )
        raw: aiohttp.ClientResponse = response.response
        return raw


@contextlib.contextmanager
def _usable(settings: KubeSettings) -> Iterator[None]:
    """Say where an unusable configuration came from.

    The package checks a kubeconfig's shape by running into it, hence the list.
    """
    shapes = (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)
    try:
        yield
    except (package.ConfigException, OSError, *shapes) as error:
        where = settings.kubeconfig or "the pod's service account"
        raise RetryableError(
            Reason.API_UNAVAILABLE,
            f"no usable API server configuration in {where}: {error}",
            "give --kubeconfig, or run in a pod with a service account",
        ) from error


async def _load(settings: KubeSettings) -> Any:
    configuration = package.Configuration()
    if settings.kubeconfig:
        _require(settings.kubeconfig)
        await package.load_kube_config(
            settings.kubeconfig, client_configuration=configuration, persist_config=False
        )
    else:
        package.load_incluster_config(client_configuration=configuration)
    configuration.proxy = configuration.proxy or _proxy(configuration.host)
    return configuration


def _require(kubeconfig: str) -> None:
    if not any(Path(path).expanduser().is_file() for path in kubeconfig.split(os.pathsep)):
        raise FileNotFoundError("no such file")


def _identity(configuration: Any) -> tuple[object, ...]:
    """What a TLS session depends on; when it changes, a new one is made."""
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return (
        configuration.host,
        configuration.verify_ssl,
        configuration.tls_server_name,
        configuration.proxy,
        *(Path(file).read_bytes() if file else b"" for file in files),
    )


def _proxy(host: str) -> str | None:
    """The proxy that HTTPS_PROXY and NO_PROXY name for this host; asked once, not per request.

    aiohttp's `trust_env` would do it, and read ~/.netrc in a thread for every request.
    """
    url = urllib.parse.urlsplit(host)
    if urllib.request.proxy_bypass(url.netloc):
        return None
    return urllib.request.getproxies().get(url.scheme)


def _transport(
    configuration: Any, user_agent: str, make_socket: Callable[[Any], socket.socket]
) -> tuple[Any, aiohttp.TCPConnector]:
    """The package's own transport over a connector that keeps connections for us.

    The package does not close a connector that it was given; `Connection.close` does.
    """
    rest = package.RESTClientObject(configuration)
    connector = aiohttp.TCPConnector(
        limit=0, ssl=rest.ssl_context, keepalive_timeout=_KEEP_ALIVE_S, socket_factory=make_socket
    )
    configuration.client_session_kwargs = {
        "connector": connector,
        "cookie_jar": aiohttp.DummyCookieJar(),
        "headers": {"Accept": "application/json", "User-Agent": user_agent},
        "trust_env": False,
    }
    return rest, connector
