# SPDX-License-Identifier: Apache-2.0
"""The clock of events, which a tester can stop and move."""

from __future__ import annotations

import time

from nvdra_sim.state_file import layout


def now_ns(now: layout.NodeState) -> int:
    """The current time for events, in nanoseconds since 1970."""
    return int(now.clock_frozen_ns or time.time_ns() + now.clock_offset_ns)
