# SPDX-License-Identifier: Apache-2.0
"""The log lines of each verbosity of `-v` (charts/README.md)."""

import pytest
from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.polling import wait_until

LINES = {
    0: "Starting",
    2: "Finished: reconcile",
    3: "Watching path=",
    4: "Finished: ensure daemonset",
    6: 'API request verb="POST" resource="daemonsets" code="201"',
}


@pytest.mark.parametrize("level", [0, 2, 3, 4, 6])
async def test_each_level_adds_its_lines_to_those_below(
    world: DriverInstallation, level: int
) -> None:
    with world.run_controller(f"-v={level}") as controller:
        world.create_domain()
        await world.wait_children_ready()
        assert await controller.stop() == 0
        log = controller.log.read_text()
    said = {each for each, line in LINES.items() if line in log}
    assert said == {each for each in LINES if each <= level}
    assert ("Listed path=" in log) == (level >= 2)


async def test_the_first_line_shows_every_setting(world: DriverInstallation) -> None:
    with world.run_controller("-v=0", "--max-nodes-per-imex-domain=7") as controller:
        await wait_until(controller.is_ready)
        first = controller.log.read_text().splitlines()[0]
    for word in ("Starting", "version=", "max-nodes-per-imex-domain=7", "additional-namespaces="):
        assert word in first
