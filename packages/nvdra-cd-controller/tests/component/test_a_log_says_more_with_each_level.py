"""What the log has at each verbosity: `-v` and what it promises (charts/README.md)."""

import pytest
from cd_world import World
from waiting import until

LINES = {
    0: "Starting",
    2: "Finished: reconcile",
    3: "watching path=",
    4: "Finished: ensure daemonset",
    6: "asked the API server verb=POST resource=daemonsets code=201",
}


@pytest.mark.parametrize("level", [0, 2, 3, 4, 6])
async def test_a_level_has_its_lines_and_those_below_and_none_above(
    world: World, level: int
) -> None:
    with world.controlled(f"-v={level}") as controller:
        world.create()
        await world.formed()
        assert await controller.stop() == 0
        log = controller.log.read_text()
    said = {each for each, line in LINES.items() if line in log}
    assert said == {each for each in LINES if each <= level}
    assert ("listed path=" in log) == (level >= 2)


async def test_the_first_line_has_every_setting(world: World) -> None:
    with world.controlled("-v=0", "--max-nodes-per-imex-domain=7") as controller:
        await until(controller.is_ready)
        first = controller.log.read_text().splitlines()[0]
    for word in ("Starting", "version=", "max-nodes-per-imex-domain=7", "additional-namespaces="):
        assert word in first
