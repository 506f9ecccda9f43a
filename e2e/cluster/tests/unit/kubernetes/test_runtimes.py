# SPDX-License-Identifier: Apache-2.0
"""The configuration of each container runtime, as a parser reads it."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from nvdra_lab.kubernetes.runtimes import RUNTIMES, STORAGE

WRAPPER = Path(__file__).parents[3] / "programs" / "runc-in-container"
PROGRAMS = {name: f"/bin/{name}" for name in ("pinns", "runc-in-container", "ctr")}
CDI = ["/etc/cdi", "/var/run/cdi"]


def config(runtime: str, path: str) -> dict[str, Any]:
    return tomllib.loads(RUNTIMES[runtime].files(PROGRAMS)[path])


@pytest.mark.parametrize(
    ("runtime", "plugin", "version"),
    [
        ("containerd", "io.containerd.cri.v1.runtime", 3),
        ("containerd-1.7", "io.containerd.grpc.v1.cri", 2),
    ],
)
def test_containerd_reads_cdi_specs_and_runs_debians_runc(
    runtime: str, plugin: str, version: int
) -> None:
    read = config(runtime, "/etc/containerd/config.toml")
    assert read["version"] == version
    settings = read["plugins"][plugin]
    assert settings["enable_cdi"] is True
    assert settings["cdi_spec_dirs"] == CDI
    assert settings["containerd"]["runtimes"]["runc"]["options"]["BinaryName"] == "/usr/sbin/runc"


def test_the_image_of_sandboxes_is_there_without_a_registry() -> None:
    current = config("containerd", "/etc/containerd/config.toml")["plugins"]
    images = current["io.containerd.cri.v1.images"]
    assert images["pinned_images"]["sandbox"].startswith("docker.io/")
    former = config("containerd-1.7", "/etc/containerd/config.toml")["plugins"]
    assert former["io.containerd.grpc.v1.cri"]["sandbox_image"].startswith("docker.io/")
    assert config("cri-o", "/etc/crio/crio.conf")["crio"]["image"]["pause_image"].startswith(
        "docker.io/"
    )


def test_crio_reads_cdi_specs_and_the_store_that_images_are_imported_into() -> None:
    read = config("cri-o", "/etc/crio/crio.conf")["crio"]
    assert read["runtime"]["cdi_spec_dirs"] == CDI
    assert f"--root={read['root']}" in STORAGE
    assert f"--runroot={read['runroot']}" in STORAGE
    assert f"--storage-driver={read['storage_driver']}" in STORAGE
    argv = RUNTIMES["cri-o"].import_image(PROGRAMS, "/images/a.tar")
    assert argv[-1] == "oci-archive:/images/a.tar"


def test_several_nodes_of_one_network_namespace_have_ports_of_their_own() -> None:
    assert config("cri-o", "/etc/crio/crio.conf")["crio"]["api"]["stream_port"] == "0"


def adapted(given: dict[str, Any], function: str) -> dict[str, Any]:
    program = (
        f"import runpy, json, sys; made = runpy.run_path({str(WRAPPER)!r})[{function!r}]; "
        + ("print(json.dumps(made(json.load(sys.stdin))))")
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, input=json.dumps(given), capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_runc_is_not_asked_for_what_this_machine_cannot_do() -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    wanted = {"bounding": ["CAP_CHOWN", "CAP_OF_TOMORROW"]}
    process = {"args": ["a"], "oomScoreAdj": own - 1, "capabilities": wanted}
    made = adapted({"process": process, "root": {"path": "r"}}, "adapted_bundle")
    possible = {"args": ["a"], "capabilities": {"bounding": ["CAP_CHOWN"]}}
    assert made == {"process": possible, "root": {"path": "r"}}
    assert adapted(process, "adapted_process") == possible
    assert adapted({"oomScoreAdj": own}, "adapted_process") == {"oomScoreAdj": own}
