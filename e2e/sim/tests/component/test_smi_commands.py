# SPDX-License-Identifier: Apache-2.0
import csv
import io
import os
import re
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from nvdra_sim import incidents
from nvdra_sim.configuration import hardware_catalog, node_config
from nvdra_sim.state_file import state
from nvdra_sim.testing.node_fixtures import MakeNode, SimulatedNode

WIDTH = 91


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text))]


def query(node: SimulatedNode, fields: str, *arguments: str) -> list[list[str]]:
    done = node.run(node.smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits", *arguments)
    assert done.returncode == 0, done.stdout
    return rows(done.stdout)


@pytest.mark.parametrize(
    "profile", [name for name in hardware_catalog.profile_names() if name != "none"]
)
def test_the_list_names_every_gpu_of_the_profile(profile: str, shared_node: MakeNode) -> None:
    node = shared_node(profile)
    done = node.run(node.smi, "-L")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})" for gpu in node.description.gpus
    ]


@pytest.mark.parametrize(
    "profile", [name for name in hardware_catalog.profile_names() if name != "none"]
)
def test_a_query_answers_with_the_columns_of_the_profile(
    profile: str, shared_node: MakeNode
) -> None:
    node = shared_node(profile)
    fields = "index,name,uuid,minor,serial,memory.total,power.max_limit,clocks.max.sm,compute_cap"
    assert query(node, fields) == [
        [
            str(gpu.index),
            gpu.name,
            gpu.uuid,
            str(gpu.minor),
            gpu.serial,
            str(gpu.memory_mib),
            f"{gpu.power_max_w}.00",
            str(gpu.clock_graphics_mhz),
            "{}.{}".format(*gpu.compute_capability),
        ]
        for gpu in node.description.gpus
    ]


@pytest.mark.parametrize(
    "profile", [name for name in hardware_catalog.profile_names() if name != "none"]
)
def test_every_line_of_the_table_has_the_same_width(profile: str, shared_node: MakeNode) -> None:
    node = shared_node(profile)
    done = node.run(node.smi)
    assert done.returncode == 0
    date, *table = done.stdout.splitlines()
    assert re.match(r"[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4} *$", date)
    assert {len(line) for line in table if line} == {WIDTH}


def test_the_table_shows_what_people_look_for(sim_node: MakeNode) -> None:
    node = sim_node("dgx-h100", overrides={"gpu_count": 1})
    _, rule, versions, *lines = node.run(node.smi).stdout.splitlines()
    assert set(rule) == {"+", "-"}
    assert versions.split() == [
        "|",
        *("NVIDIA-SMI", "580.95.05"),
        *("Driver", "Version:", "580.95.05"),
        *("CUDA", "Version:", "13.0"),
        "|",
    ]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[5:8]] == [
        ["0  NVIDIA H100 80GB HBM3         Off", "00000000:53:00.0 Off", "0"],
        ["N/A   28C    P0             69W /  700W", "0MiB /  81559MiB", "0%      Default"],
        ["", "", "Disabled"],
    ]
    assert "No running processes found" in lines[-2]


def test_a_board_without_mig_shows_none(shared_node: MakeNode) -> None:
    node = shared_node("t4")
    assert query(node, "mig.mode.current,mig.mode.pending")[0] == ["[N/A]", "[N/A]"]
    assert "Disabled" not in node.run(node.smi).stdout


def test_mig_mode_is_turned_on_and_off(sim_node: MakeNode) -> None:
    node = sim_node("dgx-h100", overrides={"gpu_count": 2})
    done = node.run(node.smi, "-i", "1", "-mig", "1")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        ["Enabled MIG Mode for GPU 00000000:64:00.0", "All done."],
    )
    fields = "mig.mode.current,mig.mode.pending"
    assert query(node, fields) == [["Disabled", "Disabled"], ["Enabled", "Enabled"]]
    file = state.load(node.state)
    incidents.add_process(file, file.gpu("1"), 4711)
    pending = node.run(node.smi, "-i", "1", "-mig", "0")
    assert pending.returncode == 0
    assert "Warning: MIG mode is in pending disable state" in pending.stdout
    assert query(node, fields)[1] == ["Enabled", "Disabled"]
    assert node.run(node.smi, "-mig", "2").returncode == 2


def test_mig_mode_of_a_board_without_mig_is_refused(shared_node: MakeNode) -> None:
    node = shared_node("t4")
    done = node.run(node.smi, "-i", "0", "-mig", "1")
    assert (done.returncode, "Not Supported" in done.stdout) == (3, True)


def test_a_long_name_is_cut(shared_node: MakeNode) -> None:
    node = shared_node("rtx-pro-6000")
    assert "  0  NVIDIA RTX PRO 6000 Blac...  " in node.run(node.smi).stdout


def test_a_query_has_headings_and_units_unless_told_otherwise(sim_node: MakeNode) -> None:
    node = sim_node("t4", overrides={"gpu_count": 1})
    done = node.run(node.smi, "--query-gpu=name,memory.total,power.draw", "--format=csv")
    assert done.stdout.splitlines() == [
        "name, memory.total [MiB], power.draw [W]",
        "Tesla T4, 15360 MiB, 10.00 W",
    ]


def test_every_field_that_help_lists_can_be_queried(sim_node: MakeNode) -> None:
    node = sim_node("dgx-h100", overrides={"gpu_count": 1})
    listed = node.run(node.smi, "--help-query-gpu").stdout.splitlines()
    names = [name for line in listed for name in line.split(" or ")]
    assert {"utilization.gpu", "temperature.gpu", "pci.bus_id", "compute_mode"} <= set(names)
    done = node.run(node.smi, f"--query-gpu={','.join(names)}", "--format=csv")
    assert done.returncode == 0
    heading, row = rows(done.stdout)
    assert len(heading) == len(row) == len(names)


def test_an_unknown_field_is_named(shared_node: MakeNode) -> None:
    node = shared_node("t4")
    done = node.run(node.smi, "--query-gpu=name,colour", "--format=csv")
    assert done.returncode == 2
    assert '"colour" is not a valid field to query' in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--colour"],
        ["-i"],
        ["--query-gpu=name"],
        ["--query-gpu=name", "--format=xml"],
        ["--query-gpu=name", "--format=noheader"],
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str], shared_node: MakeNode) -> None:
    node = shared_node("t4")
    done = node.run(node.smi, *arguments)
    assert done.returncode == 2
    assert "nvidia-smi -h" in done.stdout


@pytest.mark.parametrize("form", ["index", "uuid", "short bus id", "long bus id"])
def test_a_gpu_can_be_chosen_by(form: str, shared_node: MakeNode) -> None:
    node = shared_node("dgx-h100")
    gpu = node.description.gpus[4]
    chosen = {
        "index": "4",
        "uuid": gpu.uuid,
        "short bus id": gpu.bus_id,
        "long bus id": f"0000{gpu.bus_id.upper()}",
    }[form]
    assert query(node, "index,uuid", "-i", chosen) == [["4", gpu.uuid]]
    assert query(node, "index", f"--id={chosen},0") == [["4"], ["0"]]


@pytest.mark.parametrize("chosen", ["17", "GPU-9d3c1a52-6b0e-5f4d-8c7a-20f1e4b7a911", "nonsense"])
def test_a_gpu_that_does_not_exist_is_not_found(chosen: str, shared_node: MakeNode) -> None:
    node = shared_node("t4")
    done = node.run(node.smi, "-i", chosen)
    assert (done.returncode, done.stdout) == (6, "No devices were found\n")


def test_without_gpus_no_devices_are_found(shared_node: MakeNode) -> None:
    node = shared_node("none")
    assert node.run(node.smi).stdout == "No devices were found\n"
    assert node.run(node.smi).returncode == 6
    assert node.run(node.smi, "-L").stdout == "No devices found.\n"


@pytest.mark.parametrize(
    ("profile", "overrides"),
    [
        ("dgx-h100", {}),
        ("none", {}),
        ("a30", {"gpus": [{"index": index, "bound_driver": "vfio-pci"} for index in (0, 1)]}),
    ],
)
def test_versions_need_no_gpu(profile: str, overrides: dict[str, Any], sim_node: MakeNode) -> None:
    node = sim_node(profile, overrides=overrides)
    done = node.run(node.smi, "--version")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "NVIDIA-SMI version  : 580.95.05",
        "NVML version        : 580.95.05",
        "DRIVER version      : 580.95.05",
        "CUDA Version        : 13.0",
    ]


def test_without_the_kernel_module_it_says_so(sim_node: MakeNode) -> None:
    node = sim_node("t4", driver={"module_loaded": False})
    done = node.run(node.smi)
    assert done.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in done.stdout


def test_a_driver_of_another_version_is_reported(sim_node: MakeNode) -> None:
    rule = {"match": {"function": "nvmlInit*"}, "result": "LIB_RM_VERSION_MISMATCH"}
    node = sim_node("t4")
    state.load(node.state).add_rule(
        node_config.from_profile("t4", "n", {"faults": [rule]}).faults[0]
    )
    done = node.run(node.smi, "-L")
    assert done.returncode == 255
    assert re.fullmatch(r"Failed to initialize NVML: .*version mismatch.*\n", done.stdout)


def test_without_the_library_it_says_so(shared_node: MakeNode, tmp_path: Path) -> None:
    alone = copy(shared_node("t4").smi, tmp_path / "nvidia-smi")
    done = subprocess.run([alone], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 12
    assert "couldn't find libnvidia-ml.so" in done.stdout


def test_a_lost_gpu_is_reported_beside_the_others(sim_node: MakeNode) -> None:
    node = sim_node("t4")
    state.load(node.state).lose(node.description.gpus[2])
    table = node.run(node.smi)
    assert table.returncode == 15
    assert "ERR!" in table.stdout
    assert table.stdout.count("Tesla T4") == 3


def test_a_change_in_another_process_is_seen_at_once(sim_node: MakeNode) -> None:
    node = sim_node("t4", overrides={"gpu_count": 1})
    program = (
        "import pynvml; pynvml.nvmlInit(); h = pynvml.nvmlDeviceGetHandleByIndex(0);"
        "pynvml.nvmlDeviceSetPersistenceMode(h, 1); pynvml.nvmlDeviceSetComputeMode(h, 3)"
    )
    assert query(node, "persistence_mode,compute_mode") == [["Disabled", "Default"]]
    assert node.run(python(), "-c", program).stderr == ""
    assert query(node, "persistence_mode,compute_mode") == [["Enabled", "Exclusive_Process"]]
    assert "E. Process" in node.run(node.smi).stdout


def python() -> str:
    """The interpreter that has pynvml."""
    return sys.executable


def test_everything_known_about_a_gpu_is_one_fact_per_line(shared_node: MakeNode) -> None:
    node = shared_node("gb200-nvl72")
    done = node.run(node.smi, "-q", "-i", "1")
    assert done.returncode == 0
    facts = dict(re.findall(r"^ *(.+?) +: (.*)$", done.stdout, re.MULTILINE))
    gpu = node.description.gpus[1]
    assert facts["Attached GPUs"] == "1"
    assert facts["Product Name"] == "NVIDIA GB200"
    assert facts["GPU UUID"] == gpu.uuid
    assert facts["Addressing Mode"] == "ATS"
    assert facts["GPU Module ID"] == "1"
    assert facts["State"] == "Completed"
    assert f"GPU 00000000:{gpu.bus.bus:02X}:00.0" in done.stdout


def test_it_needs_no_environment(shared_node: MakeNode) -> None:
    node = shared_node("t4")
    done = subprocess.run([node.smi, "-L"], env={}, capture_output=True, text=True, check=True)
    assert done.stdout.count("Tesla T4") == 4


def test_it_runs_in_its_own_root(shared_node: MakeNode) -> None:
    node = shared_node("t4")
    command = ("/usr/sbin/chroot", node.roots.driver, "/usr/bin/nvidia-smi", "-L")
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    assert done.stdout.count("Tesla T4") == 4


def test_in_a_container_it_sees_the_gpus_whose_nodes_it_was_given(sim_node: MakeNode) -> None:
    node = sim_node("dgx-h100-shuffled", node={"visibility": "auto"})
    dev, given = node.roots.driver / "dev", node.description.gpus[2]
    dev.mkdir()
    os.mknod(dev / "nvidiactl", stat.S_IFCHR, os.makedev(195, 255))
    os.mknod(dev / f"nvidia{given.minor}", stat.S_IFCHR, os.makedev(195, given.minor))
    command = ("/usr/sbin/chroot", node.roots.driver, "/usr/bin/nvidia-smi", "-L")
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    assert done.stdout == f"GPU 0: {given.name} (UUID: {given.uuid})\n"


def test_help_describes_the_options(shared_node: MakeNode) -> None:
    node = shared_node("t4")
    done = node.run(node.smi, "--help")
    assert done.returncode == 0
    assert "--query-gpu" in done.stdout


# MIG


CUT = [
    {"profile": "3g.40gb", "start": 4, "compute": ["3c"]},
    {"profile": "2g.20gb", "start": 0, "compute": ["1c", "1c"]},
]


def cut_node(sim_node: MakeNode, *modes: Mapping[str, object], **sections: object) -> SimulatedNode:
    """A node with an H100 for each given `mig` of the node file."""
    gpus = [{"index": place, "mig": mig} for place, mig in enumerate(modes)]
    return sim_node("dgx-h100", overrides={"gpu_count": len(modes), "gpus": gpus}, **sections)


def mig_uuids(node: SimulatedNode) -> list[str]:
    mig = node.description.gpus[0].mig
    assert mig is not None
    (first, second) = sorted(mig.instances, key=lambda one: one.id)
    return [f"MIG-{compute.uuid}" for one in (first, second) for compute in one.compute]


def test_the_list_shows_mig_devices_below_their_gpu(sim_node: MakeNode) -> None:
    node = cut_node(sim_node, {"mode": True, "instances": CUT}, {})
    first, second = node.description.gpus
    assert node.run(node.smi, "-L").stdout.splitlines() == [
        f"GPU 0: {first.name} (UUID: {first.uuid})",
        *(
            f"  MIG {profile:<11} Device {place:2}: (UUID: {uuid})"
            for place, (profile, uuid) in enumerate(
                zip(["3g.40gb", "1c.2g.20gb", "1c.2g.20gb"], mig_uuids(node), strict=True)
            )
        ),
        f"GPU 1: {second.name} (UUID: {second.uuid})",
    ]


def test_the_table_has_a_row_per_mig_device_and_their_processes(sim_node: MakeNode) -> None:
    node = cut_node(sim_node, {"mode": True, "instances": CUT}, {"mode": True})
    file = state.load(node.state)
    incidents.add_process(file, file.gpu("0"), 999_999, 512, "compute", incidents.InstanceRef(2, 0))
    done = node.run(node.smi)
    lines = done.stdout.splitlines()
    assert {len(line) for line in lines[1:] if line} == {WIDTH}
    start = lines.index("| MIG devices:" + " " * 76 + "|")
    rows = [line.replace("|", " ").split() for line in lines[start + 6 : start + 9]]
    assert rows == [
        ["0", "2", "0", "0", "512MiB", "/", "40448MiB", "60", "0", "3", "0", "3", "0", "3"],
        ["0", "3", "0", "1", "0MiB", "/", "20096MiB", "16", "0", "2", "0", "2", "0", "2"],
        ["0", "3", "1", "2", "0MiB", "/", "20096MiB", "16", "0", "2", "0", "2", "0", "2"],
    ]
    assert ["0", "2", "0", "999999", "C", "[Not", "Found]", "512MiB"] in [
        line.strip("|").split() for line in lines
    ]


def test_the_table_says_when_there_is_no_mig_device(sim_node: MakeNode) -> None:
    assert "No MIG devices found" in run_table(cut_node(sim_node, {"mode": True}))


def test_the_table_does_not_speak_of_mig_where_it_is_off(shared_node: MakeNode) -> None:
    assert "MIG devices" not in run_table(shared_node("dgx-h100"))


def run_table(node: SimulatedNode) -> str:
    return node.run(node.smi).stdout


def test_a_container_sees_the_mig_device_whose_capabilities_it_was_given(
    sim_node: MakeNode,
) -> None:
    node = cut_node(sim_node, {"mode": True, "instances": CUT}, {}, node={"visibility": "auto"})
    given = node.description.gpus[0]
    dev = node.roots.driver / "dev"
    (dev / "nvidia-caps").mkdir(parents=True)

    def make(name: str, major: int, minor: int) -> None:
        os.mknod(dev / name, stat.S_IFCHR, os.makedev(major, minor))

    def seen() -> list[str]:
        command = ("/usr/sbin/chroot", node.roots.driver, "/usr/bin/nvidia-smi", "-L")
        done = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
        return re.findall(r"UUID: (\S+)\)", done.stdout)

    make("nvidiactl", 195, 255)
    make("nvidia0", 195, 0)
    assert seen() == [given.uuid]
    make("nvidia-caps/nvidia-cap32", 505, 32)  # compute instance 1 of GPU instance 3
    assert seen() == [given.uuid]
    make("nvidia-caps/nvidia-cap30", 505, 30)  # GPU instance 3
    assert seen() == [given.uuid, mig_uuids(node)[2]]
    (dev / "nvidia-caps/nvidia-cap32").unlink()
    assert seen() == [given.uuid]
    make("nvidia-caps/nvidia-cap1", 505, 1)  # the right to configure
    assert seen() == [given.uuid, *mig_uuids(node)]


def test_a_gpu_is_reset_once_nobody_has_it_open(sim_node: MakeNode) -> None:
    node = sim_node("dgx-h100", overrides={"gpu_count": 2})
    file = state.load(node.state)
    gpu = file.gpu("1")
    incidents.report_xid(file, gpu, 48, recovery="gpu_reset")
    fields = "index,persistence_mode,gpu_recovery_action"
    assert query(node, fields)[1] == ["1", "Disabled", "Reset"]
    assert re.search(r"GPU Recovery Action +: Reset\n", node.run(node.smi, "-q").stdout)
    on = node.run(node.smi, "-i", "1", "-pm", "1")
    assert (on.returncode, on.stdout.splitlines()) == (
        0,
        ["Enabled persistence mode for GPU 00000000:64:00.0.", "All done."],
    )
    refused = node.run(node.smi, "-i", "1", "--gpu-reset")
    assert (refused.returncode, refused.stdout.splitlines()[:2]) == (
        255,
        [
            "The following GPUs could not be reset:",
            "  GPU 00000000:64:00.0: In use by another client",
        ],
    )
    assert "already Disabled" in node.run(node.smi, "-i", "0", "-pm", "0").stdout
    assert node.run(node.smi, "-i", "1", "-pm", "0").returncode == 0
    incidents.add_process(file, gpu, 4711)
    assert node.run(node.smi, "-r", "-i", "1").returncode == 255
    incidents.remove_process(file, gpu, 4711)
    done = node.run(node.smi, "-r", "-i", "1")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        ["GPU 00000000:64:00.0 was successfully reset.", "All done."],
    )
    assert query(node, fields)[1] == ["1", "Disabled", "None"]


def test_a_reset_applies_a_pending_mig_mode(sim_node: MakeNode) -> None:
    node = sim_node("dgx-a100", overrides={"gpu_count": 1})
    node.run(node.smi, "-i", "0", "-mig", "1")
    fields = "mig.mode.current,mig.mode.pending"
    assert query(node, fields) == [["Disabled", "Enabled"]]
    node.run(node.smi, "-i", "0", "-pm", "0")
    assert node.run(node.smi, "-r", "-i", "0").returncode == 0
    assert query(node, fields) == [["Enabled", "Enabled"]]


def test_another_session_keeps_a_gpu_from_being_reset_and_a_lost_one_cannot_be(
    sim_node: MakeNode,
) -> None:
    node = sim_node("dgx-h100", overrides={"gpu_count": 1})
    script = "import pynvml, sys; pynvml.nvmlInit(); print('open', flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, env=node.environment, stdin=pipe, stdout=pipe, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "open\n"
        assert node.run(node.smi, "-r", "-i", "0").returncode == 255
        client.communicate("")
    assert node.run(node.smi, "-r", "-i", "0").returncode == 0
    file = state.load(node.state)
    file.lose(file.gpu("0"))
    assert node.run(node.smi, "-r", "-i", "0").returncode == 15
