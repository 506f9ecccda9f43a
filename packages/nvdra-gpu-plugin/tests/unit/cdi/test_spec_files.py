# SPDX-License-Identifier: Apache-2.0
"""The directory of CDI specs: what nobody stands on goes, what somebody may need stays."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nvdra_api.ids import DeviceName, GpuUUID
from nvdra_cdi import files as spec_files
from nvdra_cdi.model import ContainerEdits, DeviceNode, Mount
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi.node_spec import NodeSpec
from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.devices.claimed_names import ClaimedNames
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration

NOW = datetime(2026, 8, 1, 12, 0, tzinfo=UTC)


class StoppedClock:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0


def make(path: Path, age: timedelta) -> None:
    path.touch()
    changed = (NOW - age).timestamp()
    os.utime(path, (changed, changed))


def left(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_generations_that_nobody_stands_on_are_removed(tmp_path: Path) -> None:
    for generation in ("old", "held", "current"):
        make(tmp_path / f"k8s.gpu.nvidia.com-device_{generation}.yaml", timedelta(days=1))
    make(tmp_path / "nvidia.com-gpu.yaml", timedelta(days=1))
    files = SpecFiles(tmp_path, StoppedClock())
    files.remove_unused(ClaimedNames({"held": {}}), {"current"})
    assert not files.has("old")
    assert left(tmp_path) == {
        "k8s.gpu.nvidia.com-device_held.yaml",
        "k8s.gpu.nvidia.com-device_current.yaml",
        "nvidia.com-gpu.yaml",
    }


def test_what_our_own_writer_left_when_it_died_is_removed_at_once(tmp_path: Path) -> None:
    make(tmp_path / "spec.k8s.gpu.nvidia.com-device_current.0a1b.tmp", timedelta(0))
    make(tmp_path / "spec.k8s.gpu.nvidia.com-device_ahead.0a1b.tmp", timedelta(hours=-1))
    SpecFiles(tmp_path, StoppedClock()).remove_unused(ClaimedNames(), {"current"})
    assert left(tmp_path) == set()


def test_what_another_writer_that_died_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    make(tmp_path / "spec.dead.tmp", timedelta(minutes=61))
    make(tmp_path / "spec.writing.tmp", timedelta(minutes=59))
    SpecFiles(tmp_path, StoppedClock()).remove_unused(ClaimedNames(), set())
    assert left(tmp_path) == {"spec.writing.tmp"}


def test_a_spec_that_cannot_be_looked_at_is_not_there(tmp_path: Path) -> None:
    assert not SpecFiles(tmp_path / ("x" * 300), StoppedClock()).has("g")


UUIDS = (GpuUUID("GPU-0"), GpuUUID("GPU-1"))
SOCKET = ContainerEdits(
    mounts=(Mount("/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket"),)
)


def node_spec(version: str, gpus: Mapping[str, GpuUUID], sockets: bool = False) -> NodeSpec:
    """A spec of devices with a node each; nothing is discovered."""
    edits = {
        DeviceName(name): ContainerEdits(device_nodes=(DeviceNode(f"/dev/{name}"),))
        for name in gpus
    }
    library = f"/usr/lib/libcuda.so.{version}"
    return NodeSpec(
        generation=SpecGeneration(
            version, {name: f"k8s.gpu.nvidia.com/device={name}-{version[:3]}" for name in edits}
        ),
        options=Options(),
        common_edits=ContainerEdits(mounts=(Mount(library, library),)),
        sockets=SOCKET if sockets else ContainerEdits(),
        device_edits=edits,
        container_edits=edits,
        devices={uuid: DeviceName(name) for name, uuid in gpus.items()},
    )


def named(directory: Path) -> dict[str, str]:
    """The device node behind each name, over all files; a name is in one file alone."""
    found: dict[str, str] = {}
    for path in directory.glob("*.yaml"):
        for device in spec_files.read(path).devices:
            assert device.name not in found, "two specs have the name"
            found[device.name] = device.container_edits.device_nodes[0].path
    return found


def test_names_of_prepared_claims_are_in_the_spec_before_any_claim_is_prepared_again(
    tmp_path: Path,
) -> None:
    files = SpecFiles(tmp_path, StoppedClock())
    files.open(ClaimedNames(of_earlier_boots={"gpu-0-580": UUIDS[1], "gpu-7-580": GpuUUID("gone")}))
    files.write(node_spec("590.44.1", {"gpu-0": UUIDS[0], "gpu-1": UUIDS[1]}))
    assert named(tmp_path) == {
        "gpu-0-590": "/dev/gpu-0",
        "gpu-1-590": "/dev/gpu-1",
        "gpu-0-580": "/dev/gpu-1",
    }


def test_names_of_an_earlier_boot_leave_the_specs_that_it_has_left_behind(tmp_path: Path) -> None:
    """The directory need not be a tmpfs. A name whose GPU is gone must not mean another one."""
    before = SpecFiles(tmp_path, StoppedClock())
    before.write(node_spec("580.95.05", {"gpu-0": UUIDS[0], "gpu-1": UUIDS[1]}))
    files = SpecFiles(tmp_path, StoppedClock())
    files.open(ClaimedNames(of_earlier_boots={"gpu-0-580": UUIDS[0], "gpu-1-580": UUIDS[1]}))
    files.write(node_spec("590.44.1", {"gpu-1": UUIDS[0]}))
    assert named(tmp_path) == {"gpu-1-590": "/dev/gpu-1", "gpu-0-580": "/dev/gpu-1"}
    assert not files.has("580.95.05")


def test_names_that_no_claim_has_any_more_go(tmp_path: Path) -> None:
    files = SpecFiles(tmp_path, StoppedClock())
    files.open(ClaimedNames({"590.44.1": {"gpu-0-580": UUIDS[1]}}))
    files.write(node_spec("590.44.1", {"gpu-0": UUIDS[0], "gpu-1": UUIDS[1]}))
    assert "gpu-0-580" in named(tmp_path)
    files.remove_unused(ClaimedNames(), {"590.44.1"})
    assert set(named(tmp_path)) == {"gpu-0-590", "gpu-1-590"}


def test_names_that_this_process_has_given_out_stay(tmp_path: Path) -> None:
    """A claim may just be answered with one: no record has it yet."""
    files = SpecFiles(tmp_path, StoppedClock())
    files.write(node_spec("580.95.05", {"gpu-0": UUIDS[0]}))
    moved = node_spec("580.95.05", {"gpu-4": UUIDS[0]})
    files.write(moved)
    files.remove_unused(ClaimedNames(), {"580.95.05"})
    assert named(tmp_path) == {"gpu-0-580": "/dev/gpu-4", "gpu-4-580": "/dev/gpu-4"}


def test_a_socket_that_goes_or_comes_does_so_in_the_specs_of_all_generations(
    tmp_path: Path,
) -> None:
    files, claimed = SpecFiles(tmp_path, StoppedClock()), ClaimedNames({"580.95.05": {}})
    files.write(node_spec("580.95.05", {"gpu-0": UUIDS[0]}, sockets=True))
    without = [node_spec("590.44.1", {"gpu-0": UUIDS[0]}, sockets=is_up) for is_up in (False, True)]
    for spec, is_there in zip(without, (False, True), strict=True):
        files.write(spec)
        files.remove_unused(claimed, {"590.44.1"})
        texts = [path.read_text() for path in tmp_path.glob("*.yaml")]
        assert ["persistenced" in text for text in texts] == [is_there, is_there]
    later = SpecFiles(tmp_path, StoppedClock())
    later.open(claimed)
    later.write(without[0])
    later.remove_unused(claimed, {"590.44.1"})
    assert not [path for path in tmp_path.glob("*.yaml") if "persistenced" in path.read_text()]
    assert later.driver_versions == {"580.95.05": "580.95.05", "590.44.1": "590.44.1"}


def test_a_spec_is_found_by_a_name_in_it(tmp_path: Path) -> None:
    SpecFiles(tmp_path, StoppedClock()).write(node_spec("580.95.05", {"gpu-0": UUIDS[0]}))
    files = SpecFiles(tmp_path, StoppedClock())
    assert files.generation_of("gpu-0-580") == "580.95.05"
    assert files.generation_of("gpu-0-590") == ""
