"""The command: arguments, the chapters in order, and the message if a step fails."""

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable
from types import FrameType

from nvdra_gpu_plugin.__about__ import __version__
from nvdra_lab import environment, state
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.providers.local import LabRequest
from nvdra_testing.cluster.kubectl import WaitTimeout

from e2e.demo import claim_trace, domain_chapter, environment_setup, next_steps, quickstarts, tables
from e2e.demo.domain_chapter import RACK
from e2e.demo.screen import Screen

FAILURES = (LabError, WaitTimeout, AssertionError, subprocess.SubprocessError, OSError)
"""A command that failed, a fact that did not come true, an answer that did not come."""


def main() -> int:
    """Run the demo; return 1 if a step fails."""
    return run(_parse_arguments(), _run_chapters)


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


def _run_chapters(screen: Screen, here: Environment, wishes: LabRequest) -> None:
    cluster = environment_setup.start_cluster(screen, here, wishes)
    environment_setup.install_driver(screen, here, cluster)
    screen.chapter(
        "What the driver publishes",
        "A ResourceSlice per node. Claims select by these attributes, and by more.",
    )
    devices = cluster.devices()
    screen.commands(["kubectl get resourceslices -o yaml"])
    screen.show(tables.devices(devices))
    quickstarts.run(screen, cluster, devices)
    claim_trace.run(screen, cluster)
    domain_chapter.run(screen, cluster)
    next_steps.show(screen, cluster, devices)


def _parse_arguments() -> LabRequest:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description="See: make demo")
    release = f"%(prog)s of nvdra-gpu-plugin {__version__}"
    parser.add_argument("--version", action="version", version=release)
    parser.add_argument("--nodes", type=int, default=2, metavar="N")
    parser.add_argument("--profile", default=RACK, help="hardware of each node")
    parser.add_argument("--kube", default="1.36", metavar="VERSION", help="Kubernetes release")
    parser.add_argument("--name", default="lab", help="the lab to use")
    options = parser.parse_args()
    return LabRequest(options.name, options.nodes, options.profile, options.kube)


def _is_running(here: Environment, wishes: LabRequest) -> bool:
    return state.load(here, wishes.name) is not None


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
