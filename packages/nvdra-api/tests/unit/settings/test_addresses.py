# SPDX-License-Identifier: Apache-2.0
"""An address in a setting has a host, which may be empty, and a port."""

import pytest
from nvdra_runtime.settings import addresses


@pytest.mark.parametrize("address", [":0", ":8080", "127.0.0.1:6060", "[::1]:65535", "host:1"])
def test_a_valid_address_is_returned(address: str) -> None:
    assert addresses.validate(address) == address


@pytest.mark.parametrize("address", ["", "host", "host:", ":65536", ":1a", "8080"])
def test_an_invalid_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(ValueError, match=r"such as 127\.0\.0\.1:6060, with a port from 0 to 65535"):
        addresses.validate(address)


def test_a_server_has_no_port_zero() -> None:
    with pytest.raises(ValueError, match="from 1 to 65535"):
        addresses.validate(":0", lowest_port=1)
