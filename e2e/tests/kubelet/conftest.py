# SPDX-License-Identifier: Apache-2.0
"""The order of the tests of the kubelet's protocol."""

from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a lab of their own come last, because it stays up until the end of the session."""
    items.sort(key=lambda item: item.path == Path(__file__).with_name("test_ipv6.py"))
