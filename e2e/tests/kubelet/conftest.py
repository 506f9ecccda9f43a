# SPDX-License-Identifier: Apache-2.0
"""The order of the tests of the kubelet's protocol."""

from pathlib import Path

import pytest

OWN_LABS = ("test_virtual_machines.py", "test_ipv6.py")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a lab of their own come last, as theirs is up beside that of the others."""
    here = Path(__file__).parent
    later = [here / name for name in OWN_LABS]
    items.sort(key=lambda item: later.index(item.path) if item.path in later else -1)
