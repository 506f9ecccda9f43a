# SPDX-License-Identifier: Apache-2.0
"""What sandboxes have in common whose processes reach the API server through a recording proxy."""

from functools import cached_property
from pathlib import Path

from nvdra_testing.crash_campaigns.api_writes import WriteLog
from nvdra_testing.crash_campaigns.points import TraceNames
from nvdra_testing.faults.api_proxy import FaultyProxy


class RecordedSandbox:
    """A directory and a proxy, by whose names the traces of its processes are read."""

    proxy: FaultyProxy
    directory: Path

    @cached_property
    def write_log(self) -> WriteLog:
        """The writes of the process that is struck, in the operation."""
        return WriteLog(self.proxy)

    @property
    def trace_names(self) -> TraceNames:
        """The names with which traces of this sandbox are read."""
        return TraceNames(str(self.directory), self.proxy.port)
