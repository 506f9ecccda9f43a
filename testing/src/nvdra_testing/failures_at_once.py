# SPDX-License-Identifier: Apache-2.0
"""Failures are told when they happen: a run that is cut off has said what failed until then."""

import pytest

LINES = 6
"""Of a message. The whole of it follows at the end of the run."""


class FailuresAtOnce:
    """Prints each failed test and the beginning of its message.

    Args:
        terminal: Prints, in the process that was started; workers of pytest-xdist have none.
    """

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a failure below the line of progress."""
        if not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message if crash else report.longreprtext
        self._terminal.write_line("")
        self._terminal.write_line(f"✗ {report.nodeid} ({report.when})", red=True)
        for line in message.splitlines()[:LINES]:
            self._terminal.write_line(f"    {line}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Begin to print, unless this process is a worker."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(terminal), "failures_at_once")
