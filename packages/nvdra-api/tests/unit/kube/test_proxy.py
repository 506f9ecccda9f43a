# SPDX-License-Identifier: Apache-2.0
"""Which connections go through a proxy; the cases are those of Go's httpproxy package."""

import urllib.request

import pytest
from nvdra_runtime.kube import proxy

PROXY = "http://proxy.example.com:3128"
API = "https://10.96.0.1:443"


@pytest.mark.parametrize(
    ("url", "excepted", "is_direct"),
    [
        (API, "", False),
        (API, "10.96.0.1", True),
        (API, "10.96.0.10", False),
        (API, "localhost, 10.0.0.0/8", True),
        (API, "192.168.0.0/16,.svc", False),
        (API, "10.96.0.1:443", True),
        (API, "10.96.0.1:6443", False),
        (API, "*", True),
        ("https://[fd00::1]:443", "fd00::1", True),
        ("https://[fd00::1]:443", "[fd00::1]:443", True),
        ("https://[fd00::1]:443", "fd00::/64", True),
        ("https://[fd00::1]:443", "fd01::/64,10.0.0.0/8", False),
        ("https://api.example.com", "example.com", True),
        ("https://example.com", "example.com", True),
        ("https://myexample.com", "example.com", False),
        ("https://api.example.com", ".example.com", True),
        ("https://api.example.com", "*.example.com", True),
        ("https://example.com", ".example.com", False),
        ("https://api.example.com:6443", "example.com:443", False),
        ("https://api.example.com", "EXAMPLE.com", True),
        ("https://api.example.com", "10.0.0.0/8", False),
        ("https://localhost:6443", "", True),
        ("https://127.0.0.1:6443", "", True),
        ("https://[::1]:6443", "", True),
        (API, "10.96.0.0/33,:,::/,nonsense/8", False),
    ],
)
def test_exceptions_are_names_addresses_and_networks(
    url: str, excepted: str, is_direct: bool
) -> None:
    found = proxy.find(url, {"https": PROXY, "no": excepted})
    assert found == (None if is_direct else PROXY)


def test_each_scheme_has_its_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy:3128")
    monkeypatch.setenv("http_proxy", "http://other")
    proxies = urllib.request.getproxies_environment()
    assert proxy.find("https://a", proxies) == "http://proxy:3128"
    assert proxy.find("http://a", proxies) == "http://other"
    assert proxy.find("https://a", {"http": "http://other"}) is None
