# SPDX-License-Identifier: Apache-2.0
"""Reports of tests whose texts hold surrogates, which no process of pytest-xdist can send.

What a test logs and prints is a part of its report, and some tests hand on texts that cannot be
encoded.
"""

from collections.abc import Generator
from typing import Any

import pytest
from nvdra_api import texts


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Write surrogates as escapes."""
    return encodable((yield))


def encodable(value: Any) -> Any:
    """The value, a part of a report, with texts that can be encoded."""
    if isinstance(value, str):
        return texts.encodable(value)
    if isinstance(value, dict):
        return {name: encodable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(encodable, value))
    return value
