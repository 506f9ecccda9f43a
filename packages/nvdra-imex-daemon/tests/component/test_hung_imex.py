# SPDX-License-Identifier: Apache-2.0
"""A nvidia-imex that hangs is ended and started again, and never one that waits for others."""

import os
import signal

from nvdra_testing.node.imex_daemons import DaemonPod, Rack

TIMEOUT = "--imex-hang-timeout=28s"
"""Longer than a problem lasts before it is an Event."""
RESTARTED_S = 90.0
"""A question without an answer, the timeout, and the time that SIGTERM gets."""


def starts(pod: DaemonPod) -> int:
    return int(pod.status().get("imex", {}).get("starts", 0))


def test_an_imex_that_gives_no_answer_is_started_again_with_an_event(rack: Rack) -> None:
    rack.install_driver("node-a")
    pod = rack.start_pod("node-a", TIMEOUT)
    rack.wait_until(lambda: rack.are_ready("node-a"), "it to be Ready")
    (hung,) = pod.imex_pids()
    os.kill(hung, signal.SIGSTOP)
    rack.wait_until(lambda: not pod.is_ready(), "its readiness probe to fail", RESTARTED_S)
    rack.wait_until(lambda: starts(pod) == 2, "it to be started again", RESTARTED_S)
    rack.wait_until(lambda: rack.are_ready("node-a"), "it to be Ready again", RESTARTED_S)
    assert pod.imex_pids() != [hung]
    rack.wait_until(
        lambda: any("it hangs" in each["message"] for each in rack.events("DaemonNotReady")),
        "the Event",
    )
    assert 'reason="hung"' in pod.get("/metrics")[1]


def test_an_imex_that_answers_and_is_not_ready_is_left_alone(rack: Rack) -> None:
    rack.install_driver("node-a")
    rack.set_imex_faults("node-a", never_ready=True)
    # Long enough for an answer on a machine that does ten things at once.
    pod = rack.start_pod("node-a", "--imex-hang-timeout=10s")
    rack.wait_until(lambda: starts(pod) == 1, "it to start")
    rack.wait_until(lambda: float(pod.status()["imex"]["seconds"]) > 16.0, "some questions")
    assert starts(pod) == 1
    assert not pod.is_ready()
