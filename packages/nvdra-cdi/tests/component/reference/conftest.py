# SPDX-License-Identifier: Apache-2.0
"""The reference library to ask, and the corpus with its answers: `cdi_corpus`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from cdi_corpus import (
    comparison,
    corpus,
    injections,
    namings,
    oracle,
    tally,
)


@pytest.fixture(scope="session")
def reference() -> Iterator[oracle.Oracle]:
    """The reference library's process."""
    with oracle.running() as process:
        yield process


@pytest.fixture(scope="session")
def runtimes_library() -> Iterator[oracle.Oracle]:
    """The process with the older library that containerd has inside."""
    with oracle.running(oracle.IN_RUNTIMES) as process:
        yield process


@pytest.fixture(scope="session")
def compared(reference: oracle.Oracle) -> list[comparison.Compared]:
    """Every document of the corpus with what both sides say."""
    return comparison.compare(corpus.documents(), reference)


@pytest.fixture(scope="session")
def injected(reference: oracle.Oracle, tmp_path_factory: pytest.TempPathFactory) -> tally.Tally:
    """Every cache and injection with what both sides say."""
    return injections.compared(corpus.SEED, tmp_path_factory.mktemp("injections"), reference)


@pytest.fixture(scope="session")
def named(reference: oracle.Oracle) -> tally.Tally:
    """Every name and annotation with what both sides say."""
    return namings.compared(corpus.SEED, reference)
