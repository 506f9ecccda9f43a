# SPDX-License-Identifier: Apache-2.0
"""`nvdra-cdi generate` on simulated nodes, beside `nvidia-ctk cdi generate`, and from its wheel.

The texts are equal but for two things: our nodes have their type, our by-path links have no dev
root in front (docs/reference/cdi.md §§13.6, 16.1). Needs root, as the toolkit insists on real
nodes.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from nvdra_sim.testing.node_fixtures import MakeNode, SimulatedNode

HOOK = "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook"
PACKAGE = Path(__file__).parents[2]
GENERATE = (sys.executable, "-m", "nvdra_cdi", "generate")


@pytest.fixture
def node(sim_node: MakeNode) -> MakeNode:
    def make(profile: str, **sections: object) -> SimulatedNode:
        return sim_node(profile, render={"nodes": "real"}, **sections)

    return make


def places(node: SimulatedNode) -> tuple[str, ...]:
    return (f"--driver-root={node.roots.driver}", f"--dev-root={node.roots.dev.parent}", HOOK)


def ours(node: SimulatedNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    simulated = (f"--sys-root={node.roots.sys}", f"--proc-root={node.roots.proc}")
    return node.run(*GENERATE, *places(node), *simulated, *arguments)


def theirs(node: SimulatedNode, toolkit: Path, *arguments: str) -> str:
    in_place = 'mount --bind "$1" /sys && shift && exec "$@"'
    done = node.run(
        *("unshare", "--mount", "sh", "-c", in_place, "sh", node.roots.sys),
        *(toolkit, "--quiet", "cdi", "generate"),
        *(*places(node), *arguments),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(f"::{node.roots.dev}/dri/by-path/", "::/dev/dri/by-path/")


@pytest.mark.parametrize(
    ("profile", "arguments"),
    [
        ("l40s", ()),
        ("dgx-h100", ("--no-all-device", "--device-name-strategy=type-index", "--device-id=1")),
        ("t4", ("--disable-hook=all", "--vendor=example.com", "--class=board")),
        ("l40s", ("--device-id=none",)),
        ("dgx-h100", ("--mode=management",)),
        ("gb200-nvl72", ("--mode=imex", "--class=imex-channel")),
    ],
)
def test_the_command_prints_what_the_toolkit_prints(
    node: MakeNode, nvidia_ctk: Path, profile: str, arguments: tuple[str, ...]
) -> None:
    made = node(profile, node={"imex": {"create_channel0": True}})
    done = ours(made, *arguments)
    assert done.returncode == 0, done.stderr
    without_types = re.sub(r"^ *type: c\n", "", done.stdout, flags=re.MULTILINE)
    assert without_types == theirs(made, nvidia_ctk, *arguments)


def test_libraries_in_unusual_directories_and_variables_mean_what_they_mean_to_the_toolkit(
    node: MakeNode, nvidia_ctk: Path
) -> None:
    made = node("t4")
    moved = made.roots.driver / "opt/nvidia/lib"
    moved.parent.mkdir(parents=True)
    (made.roots.driver / "usr/lib/x86_64-linux-gnu").rename(moved)
    variables = {
        "NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS": f"{moved.parent}/none,{moved}",
        "NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES": "uuid,type-index",
        "NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS": "update-ldcache,enable-cuda-compat",
        "LD_LIBRARY_PATH": str(moved),
    }
    elsewhere = replace(made, environment={**made.environment, **variables})
    done = ours(elsewhere, "--no-all-device")
    assert done.returncode == 0, done.stderr
    without_types = re.sub(r"^ *type: c\n", "", done.stdout, flags=re.MULTILINE)
    assert without_types == theirs(elsewhere, nvidia_ctk, "--no-all-device")
    assert "NVIDIA_CTK_LIBCUDA_DIR=/opt/nvidia/lib" in done.stdout


def test_a_written_spec_is_listed_resolved_and_injected(node: MakeNode, tmp_path: Path) -> None:
    made = node("l40s")
    done = ours(made, f"--output={tmp_path}/nvidia.yaml", "--device-name-strategy=index")
    assert (done.returncode, done.stderr) == (
        0,
        f"{tmp_path}/nvidia.yaml: {len(made.description.gpus) + 1} devices of nvidia.com/gpu\n",
    )
    command = (sys.executable, "-m", "nvdra_cdi")
    there = ("--spec-dir", tmp_path)
    listed = made.run(*command, "list", "-o", "name", *there)
    assert listed.stdout.split()[0] == "nvidia.com/gpu=0"
    resolved = made.run(*command, "resolve", "--json", *there, "nvidia.com/gpu=0")
    edits = json.loads(resolved.stdout)["devices"][0]["deviceEdits"]
    assert edits["deviceNodes"][0]["path"] == "/dev/nvidia0"
    config = tmp_path / "config.json"
    config.write_text('{"ociVersion": "1.2.0"}')
    made.run(*command, "inject", "--in-place", f"--config={config}", *there, "nvidia.com/gpu=0")
    devices = {
        device["path"]: device for device in json.loads(config.read_text())["linux"]["devices"]
    }
    assert devices["/dev/nvidia0"]["major"] == 195
    assert "/dev/nvidiactl" in devices


def test_a_node_without_devices_is_told_so(node: MakeNode) -> None:
    done = ours(node("none"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no GPUs or MIG devices on this node")


def test_a_device_that_is_not_there_is_told_with_those_that_are(node: MakeNode) -> None:
    done = ours(node("t4"), "--device-id=9")
    assert (done.returncode, done.stderr) == (
        1,
        "error: no device 9 on this node; it has 0, 1, 2, 3\n",
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and its dependencies only."""
    directory = tmp_path_factory.mktemp("installed")
    python = directory / "venv" / "bin" / "python"
    run = partial(subprocess.run, check=True, capture_output=True)
    run(("hatch", "build", "-t", "wheel", directory), cwd=PACKAGE)
    run(("uv", "venv", "--python", sys.executable, directory / "venv"))
    run(("uv", "pip", "install", "--python", python, *directory.glob("*.whl")))
    return python.parent


def test_the_wheel_alone_has_the_command(installed: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = (str(installed / "nvdra-cdi"), *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert run("--version").stdout.startswith("nvdra-cdi ")
    assert run("list", "--json", "--spec-dir", str(tmp_path)).stdout == (
        '{\n  "devices": [],\n  "errors": []\n}\n'
    )
    without_nvml = run("generate")
    assert without_nvml.returncode == 1
    assert "pip install 'nvdra-cdi[generate]'" in without_nvml.stderr
