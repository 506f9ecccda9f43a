# SPDX-License-Identifier: Apache-2.0
"""Keeps the logs of a failed start, and writes the message for the user."""

import datetime
import shutil

from nvdra_lab import state
from nvdra_lab.environment import Environment
from nvdra_lab.errors import ComponentError, LabError
from nvdra_lab.model import Lab

KEPT = 5
TAIL_LINES = 15


def keep_logs(environment: Environment, lab: Lab, failure: ComponentError) -> LabError:
    """Copy all logs out of the lab's directory, which will be removed.

    Returns:
        The failure with the last lines of the component's log and the path of the whole log.
    """
    now = datetime.datetime.now(datetime.UTC)
    kept = environment.cache.failed / f"{lab.name}-{now:%Y%m%dT%H%M%SZ}"
    for machine in state.folder(environment, lab.name).machines.iterdir():
        shutil.copytree(machine / "log", kept / machine.name, dirs_exist_ok=True)
    by_age = sorted(environment.cache.failed.iterdir(), key=lambda each: each.stat().st_mtime)
    for old in by_age[:-KEPT]:
        shutil.rmtree(old)
    whole = kept / failure.log.parent.parent.name / failure.log.name
    lines = whole.read_text(errors="replace").splitlines() if whole.exists() else []
    tail = "\n".join(f"  | {line}" for line in lines[-TAIL_LINES:]) or "  | (it said nothing)"
    return LabError(f"{failure}\n{tail}\nthe whole log: {whole}\nall logs: {kept}")
