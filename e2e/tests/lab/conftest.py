# SPDX-License-Identifier: Apache-2.0
"""The tests of a lab's own life run when the lab has changed since they last passed, or for a soak.

Bringing labs up and killing them takes minutes, and only the code of `e2e/cluster` and the server
of sysfs decide how it goes. After a run in which all these tests passed, a digest of that code is
kept in the build cache.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_lab import environment

TESTS = Path(__file__).parent
LAB = TESTS.parents[1] / "cluster"
SIMULATOR = TESTS.parents[1] / "sim"
SERVED_SYSFS = ("src/nvdra_sim/sysfs_server", "src/nvdra_sim/pci", "kmod", "vmm")
"""What of the simulator is a part of a lab with passthrough."""
HARNESS = TESTS.parents[2] / "testing/src/nvdra_testing/cluster"
UNCHANGED = "e2e/cluster has not changed since these tests passed; --soak runs them all the same"


class PassedTests:
    """Which of these tests have passed, and the digest that they are kept under."""

    def __init__(self, kube: str) -> None:
        self.digest = digest(kube)
        self.expected: set[str] = set()
        self.passed: set[str] = set()
        self._file = environment.read().cache.root / "lab-tests.digest"

    def is_unchanged(self) -> bool:
        """Whether the tests have passed with this digest before."""
        return self._file.exists() and self._file.read_text() == self.digest

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that has passed."""
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Keep the digest if every test of this directory has passed."""
        if self.expected and self.expected <= self.passed:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(self.digest)


def digest(kube: str) -> str:
    """A digest of everything that the outcome of these tests depends on."""
    found = hashlib.sha256(kube.encode())
    for path in sorted(_files()):
        found.update(f"{path.relative_to(TESTS.parents[2])}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests of this directory when nothing has changed."""
    ours = [item for item in items if item.path.is_relative_to(TESTS)]
    if not ours:
        return
    passed = PassedTests(str(config.getoption("--kube")))
    if passed.is_unchanged() and not config.getoption("--soak"):
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=UNCHANGED))
        return
    if {item.path for item in ours} == set(TESTS.glob("test_*.py")):
        passed.expected = {item.nodeid for item in ours}
        config.pluginmanager.register(passed)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say that the tests were not run, which `-v` without `-rs` does not."""
    skipped = terminalreporter.stats.get("skipped", [])
    if any(UNCHANGED in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(f"tests of the lab: {UNCHANGED}")


def _files() -> Iterator[Path]:
    served = (SIMULATOR / folder for folder in SERVED_SYSFS)
    for folder in (LAB / "src", LAB / "binaries", LAB / "images", *served, TESTS, HARNESS):
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
    yield from (LAB / "pyproject.toml", LAB / "debian-packages.txt", *LAB.glob("*.yaml"))
