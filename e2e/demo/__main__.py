"""The command: which cluster, and what to say when a step fails."""

import argparse
import subprocess
import sys
import time

from kubectl import WaitedInVain

from e2e.demo import scenes, setting
from e2e.demo.screen import Screen
from e2e.demo.setting import Failed, Wishes


def main() -> int:
    """Tell the story; 1 when it cannot be told to its end."""
    wishes = _wishes()
    screen = Screen()
    began = time.monotonic()
    try:
        cluster = setting.cluster(screen, wishes)
        setting.driver(screen, cluster)
        scenes.published(screen, cluster)
        scenes.quickstarts(screen, cluster)
        scenes.trace(screen, cluster)
        scenes.farewell(screen, cluster, time.monotonic() - began)
    except Failed as error:
        screen.failure(str(error))
        return 1
    except (WaitedInVain, AssertionError, subprocess.SubprocessError) as error:
        screen.failure(str(error))
        scenes.where_to_look(screen, wishes.lab)
        return 1
    except KeyboardInterrupt:
        screen.say("\n[yellow]interrupted[/]; what is up stays up: make cluster-down")
        return 130
    return 0


def _wishes() -> Wishes:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description="See: make demo")
    parser.add_argument("--nodes", type=int, default=2, metavar="N")
    parser.add_argument("--profile", default="dgx-h100", help="hardware of each node")
    parser.add_argument("--kube", default="1.36", metavar="VERSION", help="Kubernetes release")
    parser.add_argument("--name", default="lab", help="the lab to use")
    options = parser.parse_args()
    return Wishes(options.name, options.nodes, options.profile, options.kube)


if __name__ == "__main__":
    sys.exit(main())
