# SPDX-License-Identifier: Apache-2.0
"""When NVML is opened again."""

from collections.abc import Set
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from nvdra_gpu_plugin.driver.installation import DriverInstallation
from nvdra_gpu_plugin.driver.nvml_sessions import NvmlSession
from nvdra_gpu_plugin.hardware import nvml_reopen_policy
from nvdra_gpu_plugin.hardware.nvml_reopen_policy import Action, Attempts
from nvdra_gpu_plugin.hardware.probe_state import Status
from nvdra_testing.hardware import simulated_nvml
from nvdra_testing.hardware.gpus import h100

NVML: Any = None
COMPLETE = simulated_nvml.session(NVML, h100(0), h100(1))
FOUND = COMPLETE.installation


class Node(NamedTuple):
    session: NvmlSession | None = COMPLETE
    gpus: Set[Status] = frozenset({Status.WORKING})
    found: DriverInstallation = FOUND


GOOD = Node()
BROKEN = Node(gpus={Status.WORKING, Status.FAILING})
MISSING = Node(replace(COMPLETE, count=1))
BOTH = Node(MISSING.session, BROKEN.gpus)
OVERDUE = Node(gpus={Status.WORKING, Status.OVERDUE})
OTHER_FILES = Node(found=FOUND._replace(gpus=()))
OTHER_LIBRARY = simulated_nvml.session(NVML, h100(0), h100(1), version="590.44.01").installation

TABLE = [
    # what is found, seconds since NVML was opened, attempts for broken and for missing GPUs
    (GOOD, 7200, 0, 0, Action.KEEP),
    (Node(None), 0, 0, 0, Action.OPEN),
    (Node(replace(COMPLETE, is_lost=True)), 0, 0, 0, Action.OPEN),
    (Node(found=OTHER_LIBRARY), 0, 0, 0, Action.OPEN),
    (OVERDUE._replace(found=OTHER_LIBRARY), 0, 9, 9, Action.OPEN),
    (OVERDUE, 7200, 0, 0, Action.KEEP),
    (OVERDUE._replace(found=OTHER_FILES.found), 7200, 0, 0, Action.KEEP),
    (OTHER_FILES, 0, 0, 0, Action.REOPEN),
    (BROKEN, 59, 0, 0, Action.KEEP),
    (BROKEN, 60, 0, 0, Action.REOPEN),
    (BROKEN, 119, 1, 0, Action.KEEP),
    (BROKEN, 120, 1, 0, Action.REOPEN),
    (BROKEN, 3599, 99, 0, Action.KEEP),
    (BROKEN, 3600, 99, 0, Action.REOPEN),
    (Node(gpus={Status.AWAITED}), 60, 0, 0, Action.REOPEN),
    (MISSING, 9, 0, 0, Action.KEEP),
    (MISSING, 10, 0, 0, Action.REOPEN),
    (MISSING, 59, 0, 1, Action.KEEP),
    (MISSING, 60, 0, 1, Action.REOPEN),
    (MISSING, 180, 0, 2, Action.REOPEN),
    (MISSING, 7200, 0, 3, Action.KEEP),
    (BOTH, 10, 1, 0, Action.REOPEN),
    (BOTH, 120, 1, 3, Action.REOPEN),
]


@pytest.mark.parametrize(("node", "passed_s", "for_broken", "for_missing", "action"), TABLE)
def test_nvml_is_opened_again_when_another_session_may_be_better(
    node: Node, passed_s: float, for_broken: int, for_missing: int, action: Action
) -> None:
    attempts = Attempts(50.0, 100.0, for_broken, for_missing)
    assert nvml_reopen_policy.plan(*node, attempts, 100.0 + passed_s)[0] is action


@pytest.mark.parametrize(
    ("node", "seconds", "broken", "missing"),
    [
        (BOTH, 60, 1, 2),
        (BOTH, 120, 2, 2),
        (BOTH, 9, 1, 1),
        (GOOD, 0, 0, 0),
        (BROKEN, 0, 1, 0),
        (MISSING, 0, 0, 1),
        (OTHER_FILES, 0, 0, 0),
        (OVERDUE, 0, 1, 1),
        (Node(None), 0, 1, 1),
    ],
)
def test_attempts_count_for_what_they_are_due_for_until_it_works_again(
    node: Node, seconds: float, broken: int, missing: int
) -> None:
    _, after = nvml_reopen_policy.plan(*node, Attempts(for_broken=1, for_missing=1), seconds)
    assert (after.for_broken, after.for_missing) == (broken, missing)
