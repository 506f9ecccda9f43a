# SPDX-License-Identifier: Apache-2.0
"""What only a soak runs: the option `--soak`, and tests and cases with the marker `soak`.

`make test` has to end within an hour on two cores. A test is left to `make soak` if it is long and
another one of `make test` would notice most of what it could find: whole campaigns, every profile
where one profile runs the same code, other Kubernetes releases, faults in combination. Deselected
tests are counted in pytest's last line.
"""

import pytest

from nvdra_testing import preloaded


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("soak").addoption(
        "--soak",
        action="store_true",
        help="run everything that takes long: whole campaigns, every profile and release",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Only a soak starts every program from its file."""
    preloaded.is_used = not config.getoption("--soak")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what has the marker, unless this is a soak."""
    if config.getoption("--soak"):
        return
    left_out = [item for item in items if item.get_closest_marker("soak")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
