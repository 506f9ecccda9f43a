# SPDX-License-Identifier: Apache-2.0
"""Where the library looks for its state, and which GPUs a container sees.

Source: docs/reference/nvml-simulator.md §10.3, §10.5.
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import copy

import pytest
from nvdra_sim.configuration import node_config
from nvdra_sim.native import nvml_library
from nvdra_sim.state_file import state

VERSION = "580.95.05"
LIST_UUIDS = """
import ctypes, sys
nvml = ctypes.CDLL(sys.argv[1])
code = nvml.nvmlInit_v2()
if code:
    sys.exit(code)
count, handle, uuid = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(80)
nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
for index in range(count.value):
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    nvml.nvmlDeviceGetUUID(handle, uuid, 80)
    print(uuid.value.decode())
"""


def list_uuids(
    nvml: Path, environment: Mapping[str, str], *command: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, sys.executable, "-c", LIST_UUIDS, str(nvml)],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(params=["usr/lib/x86_64-linux-gnu", "usr/lib64", "lib64"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A driver root with the library in one of the usual places, reached over its usual links."""
    place = tmp_path / "root" / request.param
    place.mkdir(parents=True)
    copy(nvml_library.build(), place / f"libnvidia-ml.so.{VERSION}")
    (place / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{VERSION}")
    (tmp_path / "libnvidia-ml.so.1").symlink_to(place / "libnvidia-ml.so.1")
    return tmp_path / "root"


def test_the_state_is_found_in_the_firmware_directory_of_the_driver_root(root: Path) -> None:
    node = node_config.from_profile("t4", "n")
    firmware = root / "lib/firmware/nvidia" / VERSION / "gsp_nvdra_sim.bin"
    state.create(firmware, node)
    found = list_uuids(root.parent / "libnvidia-ml.so.1", {})
    assert found.stdout.split() == [gpu.uuid for gpu in node.gpus]


def test_the_variable_comes_before_the_driver_root(root: Path, tmp_path: Path) -> None:
    firmware = root / "lib/firmware/nvidia" / VERSION / "gsp_nvdra_sim.bin"
    state.create(firmware, node_config.from_profile("t4", "n"))
    given = state.create(tmp_path / "given.bin", node_config.from_profile("a30", "n"))
    found = list_uuids(root.parent / "libnvidia-ml.so.1", {"NVDRA_SIM_STATE": str(given.path)})
    assert found.stdout.split() == [gpu.uuid for gpu in given.description().gpus]


def test_a_driver_root_of_another_version_is_not_ours(root: Path) -> None:
    state.create(
        root / "lib/firmware/nvidia/570.1.1/gsp_nvdra_sim.bin", node_config.from_profile("t4", "n")
    )
    assert list_uuids(root.parent / "libnvidia-ml.so.1", {}).returncode == 9


# A container's /dev: stand-ins for the nodes, made of /dev/null (1:3) and /dev/zero (1:5).
CONTAINER = """
set -e
mount -t tmpfs none {scratch}
touch {scratch}/gpu {scratch}/control
mount --bind /dev/null {scratch}/gpu
mount --bind /dev/zero {scratch}/control
mount -t tmpfs none /dev
for node in {gpus}; do touch /dev/$node; mount --bind {scratch}/gpu /dev/$node; done
for node in {controls}; do touch /dev/$node; mount --bind {scratch}/control /dev/$node; done
for node in {files}; do touch /dev/$node; done
exec "$@"
"""


def seen_in_container(
    tmp_path: Path, visibility: str, gpus: str = "", controls: str = "", files: str = ""
) -> list[int]:
    """The places, in bus order, of the GPUs that a container with these nodes sees."""
    node = node_config.from_profile(
        "dgx-h100-shuffled",
        "n",
        {"node": {"visibility": visibility}, "render": {"nodes": "openable"}},
    )
    file = state.create(tmp_path / "state.bin", node).path
    (tmp_path / "scratch").mkdir()
    script = CONTAINER.format(
        scratch=tmp_path / "scratch", gpus=gpus, controls=controls, files=files
    )
    shell = ("unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    done = list_uuids(nvml_library.build(), {"NVDRA_SIM_STATE": str(file)}, *shell)
    assert done.returncode == 0, done.stderr
    places = {gpu.uuid: gpu.index for gpu in node.gpus}
    return [places[uuid] for uuid in done.stdout.split()]


def minors(places: list[int]) -> str:
    """The device nodes of these GPUs, by their minors, which are not their places."""
    gpus = node_config.from_profile("dgx-h100-shuffled", "n").gpus
    assert [gpu.minor for gpu in gpus] != [gpu.index for gpu in gpus]
    return " ".join(f"nvidia{gpus[place].minor}" for place in places)


def test_a_container_sees_the_gpus_whose_nodes_it_has(tmp_path: Path) -> None:
    seen = seen_in_container(tmp_path, "auto", gpus=minors([2, 5]), controls="nvidiactl")
    assert seen == [2, 5]


def test_without_the_control_node_it_is_no_container(tmp_path: Path) -> None:
    assert seen_in_container(tmp_path, "auto", gpus=minors([2])) == list(range(8))


def test_a_file_with_the_name_of_a_node_is_no_node(tmp_path: Path) -> None:
    seen = seen_in_container(
        tmp_path, "auto", gpus=minors([1]), controls="nvidiactl", files=minors([3])
    )
    assert seen == [1]


def test_a_node_with_other_numbers_is_no_node(tmp_path: Path) -> None:
    seen = seen_in_container(
        tmp_path, "auto", gpus=minors([1]), controls=f"nvidiactl {minors([3])}"
    )
    assert seen == [1]


def test_nodes_may_be_asked_for_without_a_control_node(tmp_path: Path) -> None:
    assert seen_in_container(tmp_path, "devnodes", gpus=minors([4])) == [4]


def test_nodes_may_be_left_out_of_it(tmp_path: Path) -> None:
    assert seen_in_container(tmp_path, "all", controls="nvidiactl") == list(range(8))
