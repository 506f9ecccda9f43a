# SPDX-License-Identifier: Apache-2.0
"""A lab on kind, up to the programs `kind` and `docker`, which are scripts that note their calls.

The simulated hardware is real. There is no docker here, so what kind and docker do is not tested.
"""

import dataclasses
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from nvdra_lab import environment, state
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.machines import mounts
from nvdra_lab.progress import Progress
from nvdra_lab.providers import kind
from nvdra_lab.providers.local import LabRequest

NODE = "nvdra-kind-worker"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes and mounts need root")


class Programs:
    """Scripts in a folder of PATH, and the calls that they have noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls = folder / "calls"
        self._calls.touch()
        for name in ("kind", "docker"):
            self.write(name, "exit 0")

    def write(self, name: str, last: str) -> None:
        """Let a program note its call and then do this."""
        script = self.folder / name
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._calls}\n{last}\n')
        script.chmod(0o755)

    def calls(self) -> list[str]:
        """The first words of each call."""
        lines = self._calls.read_text().splitlines()
        return [line for line in lines if line.startswith(("kind ", "docker "))]


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Programs(folder)


@pytest.fixture
def here(tmp_path: Path, programs: Programs) -> Iterator[Environment]:
    real = environment.read()
    path = f"{programs.folder}:{real.path}"
    yield dataclasses.replace(
        real,
        path=path,
        state=tmp_path / "labs",
        variables={**real.variables, "PATH": path},
    )
    assert [point for point in mounts.mount_points() if point.startswith(str(tmp_path))] == []


def up(here: Environment) -> None:
    request = LabRequest("kind", 1, "dgx-h100", "1.36")
    kind.up(here, request, "", Progress())


def test_a_lab_has_its_hardware_before_kind_is_called_and_leaves_nothing(
    here: Environment, programs: Programs
) -> None:
    before = {path.name for path in Path("/dev").iterdir()}
    up(here)
    where = state.folder(here, "kind")
    folder = where.machine(NODE).run / "nvidia"
    assert stat.S_ISCHR((folder / "dev" / "nvidia0").stat().st_mode)
    assert (folder / "driver/usr/bin/nvidia-smi").exists()
    assert (folder / "proc/driver/nvidia/version").exists()
    config = yaml.safe_load((where.root / "kind.yaml").read_text())
    assert config["nodes"][1]["extraMounts"][0]["hostPath"] == str(folder)
    create, sync = programs.calls()
    assert create.startswith("kind create cluster --name=nvdra-kind ")
    assert sync.startswith(f"docker exec {NODE} sh -c find /dev")
    assert {path.name for path in Path("/dev").iterdir()} == before
    assert not Path("/run/nvidia").exists()

    lab = state.required(here, "kind")
    kind.down(here, lab)
    assert programs.calls()[-1].startswith("kind delete cluster --name=nvdra-kind ")
    assert not where.root.exists()


def test_hardware_is_changed_on_the_host_and_the_devices_follow(
    here: Environment, programs: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    up(here)
    lab = state.required(here, "kind")
    assert kind.sim(here, lab, NODE, ["gpu", "lose", "3"]) == 0
    assert kind.sim(here, lab, NODE, ["show"]) == 0
    assert "lost" in capfd.readouterr().out
    assert len([call for call in programs.calls() if call.startswith("docker exec")]) == 3


def test_a_failed_start_deletes_the_cluster_and_says_what_kind_said(
    here: Environment, programs: Programs
) -> None:
    programs.write("kind", "echo no such image >&2; test $1 = delete")
    with pytest.raises(LabError, match="no such image"):
        up(here)
    assert [shlex.split(call)[1] for call in programs.calls()] == ["create", "delete"]
    assert not state.folder(here, "kind").root.exists()


def test_kind_is_the_default_only_where_docker_answers(
    here: Environment, programs: Programs
) -> None:
    assert kind.is_available(here)
    programs.write("docker", "exit 1")
    assert not kind.is_available(here)
    (programs.folder / "kind").unlink()
    assert not kind.is_available(dataclasses.replace(here, path=str(programs.folder)))
