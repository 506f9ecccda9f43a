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
        help="the kernel that the tests run on: JSON of nvdra_sim.testing.passthrough.BackEnd; "
        "default: a simulated one",
    )


@pytest.fixture(scope="session")
def back_end(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BackEnd]:
    """The kernel of the option `--back-end`, or a simulated one."""
    path: Path | None = request.config.getoption("--back-end", default=None)
    if path is not None:
        yield BackEnd.from_json(path.read_text())
        return
    # On an emulated processor, the simulator would take seconds to import.
    from nvdra_sim.testing import passthrough_fixtures

    directory = tmp_path_factory.mktemp("kernel")
    sections = passthrough_fixtures.PAIR_BEHIND_A_SWITCH
    with passthrough_fixtures.served("t4", directory, **sections) as node:
        yield BackEnd.from_json(node.back_end())


@pytest.fixture
def host(back_end: BackEnd) -> Iterator[Host]:
    """A kernel with all functions on their native drivers, which they get back after the test."""
    with restored(back_end) as host:
        yield host
