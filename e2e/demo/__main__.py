# SPDX-License-Identifier: Apache-2.0
"""`make demo`: the chapters in order."""

import sys

from nvdra_lab.environment import Environment
from nvdra_lab.machines import requirements
from nvdra_lab.providers.local import LabRequest

from e2e.demo import (
    claim_trace,
    command,
    domain_chapter,
    environment_setup,
    health_chapter,
    mig_chapter,
    mps_chapter,
    next_steps,
    passthrough_chapter,
    quickstarts,
    tables,
    time_slicing_chapter,
)
from e2e.demo.domain_chapter import RACK
from e2e.demo.screen import Screen

GATES = ("DynamicMIG", "TimeSlicingSettings", "MPSSupport", "NVMLDeviceHealthCheck")
"""What the chapters show; on from the start, so that the driver is installed once."""


def main() -> int:
    """Run the demo; return 1 if a step fails."""
    parser = command.parser("e2e.demo", "demo", nodes=2)
    parser.add_argument("--profile", default=RACK, help="hardware of each node")
    wishes = parser.parse_args()
    has_fuse = requirements.FUSE.is_char_device()
    request = LabRequest(
        wishes.name, wishes.nodes, wishes.profile, wishes.kube, has_passthrough=has_fuse
    )
    return command.run(request, _run_chapters)


def _run_chapters(screen: Screen, here: Environment, wishes: LabRequest) -> None:
    cluster = environment_setup.start_cluster(screen, here, wishes)
    environment_setup.install_driver(screen, here, cluster, *GATES)
    screen.chapter(
        "What the driver publishes",
        "A ResourceSlice per node. Claims select by these attributes, and by more.",
    )
    devices = [each for each in cluster.devices() if each.attributes["type"] == "gpu"]
    screen.commands(["kubectl get resourceslices -o yaml"])
    screen.show(tables.devices(devices))
    quickstarts.run(screen, cluster, devices)
    claim_trace.run(screen, cluster)
    quickstarts.make_room(screen, cluster)
    mig_chapter.run(screen, cluster)
    time_slicing_chapter.run(screen, cluster)
    mps_chapter.run(screen, cluster)
    passthrough_chapter.run(screen, cluster)
    health_chapter.run(screen, cluster)
    domain_chapter.run(screen, cluster)
    next_steps.show(screen, cluster, devices)


if __name__ == "__main__":
    sys.exit(main())
