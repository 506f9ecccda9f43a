# SPDX-License-Identifier: Apache-2.0
"""The proxy of a URL by the environment, as Go's clients read it. Pure.

Clusters are written for Go: OpenShift and others put networks such as `10.0.0.0/8` into `NO_PROXY`,
which Python's standard library does not know.
Source: golang.org/x/net/http/httpproxy, `FromEnvironment` and `Config.NoProxy`.
"""

import ipaddress
import urllib.parse
from collections.abc import Mapping

_PORTS = {"http": 80, "https": 443}


def find(url: str, proxies: Mapping[str, str]) -> str | None:
    """The URL of the proxy for a URL.

    Args:
        url: With a scheme and a host.
        proxies: `https`, `http` and `no`, as `urllib.request.getproxies_environment` has them.

    Returns:
        A URL; None if the connection is direct.
    """
    parts = urllib.parse.urlsplit(url)
    proxy = proxies.get(parts.scheme, "")
    host = parts.hostname or ""
    if not proxy or _is_local(host):
        return None
    port = parts.port or _PORTS.get(parts.scheme, 0)
    excepted = proxies.get("no", "").split(",")
    if any(_matches(entry.strip().lower(), host, port) for entry in excepted):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _matches(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY is about a host: a name, an address or a network, or `*`."""
    if not entry:
        return False
    if entry == "*":
        return True
    address = _address(host)
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        network = None
    if network is not None:  # an address alone is a network of one
        return address is not None and address in network
    name, _, number = entry.rpartition(":")
    if name and number.isdecimal():
        if int(number) != port:
            return False
        entry = name
    literal = _address(entry.strip("[]"))
    if literal is not None or address is not None:
        return literal == address
    domain = entry.removeprefix("*")
    if domain.startswith("."):  # its subdomains alone
        return host.endswith(domain)
    return host == domain or host.endswith(f".{domain}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
