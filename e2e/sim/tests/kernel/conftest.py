# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_sim.testing.passthrough.board import BackEnd
from nvdra_sim.testing.passthrough.host import Host, restored


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--back-end",
        type=Path,
        metavar="FILE",
        help="the kernel that the tests run on: JSON of nvdra_sim.testing.passthrough.BackEnd",
    )


@pytest.fixture(scope="session")
def back_end(request: pytest.FixtureRequest) -> BackEnd:
    """The kernel of the option `--back-end`."""
    path: Path | None = request.config.getoption("--back-end", default=None)
    if path is None:
        raise pytest.UsageError(
            "these tests need --back-end=FILE; on a real kernel: "
            "python -m nvdra_sim.testing.real_kernel"
        )
    return BackEnd.from_json(path.read_text())


@pytest.fixture
def host(back_end: BackEnd) -> Iterator[Host]:
    """A kernel with all functions on their native drivers, which they get back after the test."""
    with restored(back_end) as host:
        yield host
