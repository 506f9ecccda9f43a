# SPDX-License-Identifier: Apache-2.0
"""What `make demo` and `make rack` have in common: arguments, and a step that fails."""

import argparse
import signal
import subprocess
from collections.abc import Callable
from types import FrameType

from nvdra_gpu_plugin.__about__ import __version__
from nvdra_lab import environment, state
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.providers.local import LabRequest
from nvdra_testing.cluster.kubectl import WaitTimeout

from e2e.demo import next_steps
from e2e.demo.screen import Screen

FAILURES = (LabError, WaitTimeout, AssertionError, subprocess.SubprocessError, OSError)
"""A command that failed, a fact that did not come true, an answer that did not come."""


def parser(module: str, target: str, nodes: int) -> argparse.ArgumentParser:
    """The arguments of both.

    Args:
        module: What `python -m` runs.
        target: The target of make.
        nodes: How many nodes there are unless told otherwise.
    """
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=f"See: make {target}")
    release = f"%(prog)s of nvdra-gpu-plugin {__version__}"
    made.add_argument("--version", action="version", version=release)
    made.add_argument("--nodes", type=int, default=nodes, metavar="N")
    made.add_argument("--kube", default="1.36", metavar="VERSION", help="Kubernetes release")
    made.add_argument("--name", default="lab", help="the lab to use")
    return made


def run(wishes: LabRequest, chapters: Callable[[Screen, Environment, LabRequest], None]) -> int:
    """Run the chapters, and say where to look if a step fails. Returns the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    screen, here = Screen(), environment.read()
    try:
        chapters(screen, here, wishes)
    except FAILURES as error:
        screen.failure(str(error))
        if _is_running(here, wishes):
            next_steps.where_to_look(screen, wishes.name)
        return 1
    except KeyboardInterrupt:
        stays = f"lab {wishes.name} stays up until: {next_steps.stop(wishes.name)}"
        screen.blank()
        screen.note(f"interrupted; {stays if _is_running(here, wishes) else 'nothing is up'}")
        return 130
    return 0


def _is_running(here: Environment, wishes: LabRequest) -> bool:
    return state.load(here, wishes.name) is not None


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
