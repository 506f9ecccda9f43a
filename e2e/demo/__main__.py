"""The command: which cluster, and what to say when a step fails."""

import argparse
import signal
import subprocess
import sys
from types import FrameType

from kubectl import WaitedInVain
from nvdra_gpu_plugin.__about__ import __version__
from nvdra_lab import environment, state
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.providers.local import Wishes

from e2e.demo import afterwards, domain, quickstarts, setting, tables, trace
from e2e.demo.domain import RACK
from e2e.demo.screen import Screen

FAILURES = (LabError, WaitedInVain, AssertionError, subprocess.SubprocessError, OSError)
"""A command that failed, a fact that did not come true, an answer that did not come."""


def main() -> int:
    """Tell the story; 1 when it cannot be told to its end."""
    signal.signal(signal.SIGTERM, _interrupt)
    wishes, screen, here = _wishes(), Screen(), environment.read()
    try:
        _tell(screen, here, wishes)
    except FAILURES as error:
        screen.failure(str(error))
        if _is_up(here, wishes):
            afterwards.where_to_look(screen, wishes.name)
        return 1
    except KeyboardInterrupt:
        stays = f"lab {wishes.name} stays up until: {afterwards.stop(wishes.name)}"
        screen.blank()
        screen.note(f"interrupted; {stays if _is_up(here, wishes) else 'nothing is up'}")
        return 130
    return 0


def _tell(screen: Screen, here: Environment, wishes: Wishes) -> None:
    cluster = setting.cluster(screen, here, wishes)
    setting.driver(screen, here, cluster)
    screen.chapter(
        "What the driver publishes",
        "A ResourceSlice per node. Claims select by these attributes, and by more.",
    )
    devices = cluster.devices()
    screen.commands(["kubectl get resourceslices -o yaml"])
    screen.show(tables.devices(devices))
    quickstarts.run(screen, cluster, devices)
    trace.run(screen, cluster)
    domain.run(screen, cluster)
    afterwards.tell(screen, cluster, devices)


def _wishes() -> Wishes:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description="See: make demo")
    release = f"%(prog)s of nvdra-gpu-plugin {__version__}"
    parser.add_argument("--version", action="version", version=release)
    parser.add_argument("--nodes", type=int, default=2, metavar="N")
    parser.add_argument("--profile", default=RACK, help="hardware of each node")
    parser.add_argument("--kube", default="1.36", metavar="VERSION", help="Kubernetes release")
    parser.add_argument("--name", default="lab", help="the lab to use")
    options = parser.parse_args()
    return Wishes(options.name, options.nodes, options.profile, options.kube)


def _is_up(here: Environment, wishes: Wishes) -> bool:
    return state.load(here, wishes.name) is not None


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
