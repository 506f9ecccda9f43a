"""Addresses in settings, as `host:port`: told right from wrong before anything starts."""

import re

_HIGHEST_PORT = 65535


def checked(address: str, lowest_port: int = 0) -> str:
    """The address, `host:port` or `:port`.

    Args:
        address: As given.
        lowest_port: 0 where port 0 picks a free one, 1 where somebody is to be asked there.

    Raises:
        ValueError: It is none; for pydantic, which says where it was given.
    """
    found = re.fullmatch(r".*:(\d{1,5})", address, re.ASCII)
    if found is None or not lowest_port <= int(found[1]) <= _HIGHEST_PORT:
        raise ValueError(
            "must be host:port or :port, such as 127.0.0.1:6060, the port one of "
            f"{lowest_port}…{_HIGHEST_PORT}"
        )
    return address
