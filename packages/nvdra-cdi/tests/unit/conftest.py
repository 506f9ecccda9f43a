# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the unit tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
from nvdra_testing.hardware.driver_tree import DriverTree, elf_file


@pytest.fixture
def tree(tmp_path: Path) -> DriverTree:
    return DriverTree(tmp_path)


@pytest.fixture
def golden() -> Path:
    return Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def library() -> Callable[..., bytes]:
    """Makes the bytes of a shared library: `library(soname, bits, order)`."""
    return elf_file
