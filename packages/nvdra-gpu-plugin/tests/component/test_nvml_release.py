"""An administrator has the plugin give up NVML, works on the GPUs, and has it resume."""

from pathlib import Path

from nvdra_testing.node.rig import Rig

ALL = {f"gpu-{minor}" for minor in range(8)}


def open_files_of_the_driver(rig: Rig) -> list[str]:
    """What the plugin has open or mapped of the driver's devices and simulated hardware."""
    process = Path("/proc") / str(rig.process.process.pid)
    targets = [str(each.readlink()) for each in (process / "fd").iterdir()]
    targets += [line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines()]
    return [each for each in targets if "/dev/nvidia" in each or "gsp_nvdra_sim" in each]


def versions(rig: Rig) -> list[str]:
    return [each["metadata"]["resourceVersion"] for each in rig.slices()]


async def test_a_released_plugin_has_nothing_of_the_driver_open_and_publishes_the_same(
    rig: Rig,
) -> None:
    await rig.start()
    before = versions(rig)
    assert open_files_of_the_driver(rig)
    assert "until" in rig.command("release", "--for=1h")
    assert not open_files_of_the_driver(rig)
    status, text = rig.process.get("/readyz?verbose")
    assert status == 200
    assert "NVML is released since" in text
    assert "NVML is released since" in rig.status()
    rig.command("resume")
    assert open_files_of_the_driver(rig)
    assert "NVML is released" not in rig.process.get("/readyz?verbose")[1]
    assert set(rig.devices()) == ALL
    assert versions(rig) == before


async def test_a_prepare_waits_while_nvml_is_released_and_goes_on_when_it_is_not(rig: Rig) -> None:
    await rig.start()
    held, new = rig.create_claim("gpu-1"), rig.create_claim("gpu-0")
    before = (await rig.dra.prepare([held]))[held.uid]
    rig.command("release", "--force")
    for claim in (held, new):
        text = (await rig.dra.prepare([claim], timeout_s=4))[claim.uid].error
        assert text.startswith("NvmlReleased: ")
        assert "nvdra-gpu-plugin resume" in text
    waiting = rig.dra.prepare([held, new], timeout_s=30)
    rig.command("resume")
    answers = await waiting
    assert answers[held.uid] == before
    assert not answers[new.uid].error
