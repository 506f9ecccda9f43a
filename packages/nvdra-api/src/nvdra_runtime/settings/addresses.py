# SPDX-License-Identifier: Apache-2.0
"""Validation of addresses in settings, in the form `host:port`."""

import re

_HIGHEST_PORT = 65535


def validate(address: str, lowest_port: int = 0) -> str:
    """Validate an address, `host:port` or `:port`, and return it.

    Args:
        address: The address.
        lowest_port: 0 if port 0 selects a free port, 1 for the address of a server.

    Raises:
        ValueError: The address is not valid. Pydantic adds which setting it is.
    """
    found = re.fullmatch(r".*:(\d{1,5})", address, re.ASCII)
    if found is None or not lowest_port <= int(found[1]) <= _HIGHEST_PORT:
        raise ValueError(
            "must be host:port or :port, such as 127.0.0.1:6060, with a port from "
            f"{lowest_port} to {_HIGHEST_PORT}"
        )
    return address
