# SPDX-License-Identifier: Apache-2.0
"""A node that comes back from a reboot with other hardware or another driver."""

from pathlib import Path

import pytest
import yaml
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes import files
from nvdra_lab.layout import MachineDir
from nvdra_lab.machines import hardware, machine_spec

HEAD = {"apiVersion": "nvdra.sim/v1", "kind": "Node", "metadata": {"name": "node-1"}}


def node_file(folder: Path, **sections: object) -> Path:
    file = folder / "node.yaml"
    file.write_text(yaml.safe_dump({**HEAD, "profile": "dgx-h100", **sections}))
    return file


def test_a_node_file_describes_another_driver_and_the_same_gpus(tmp_path: Path) -> None:
    found = hardware.describe_file(
        node_file(tmp_path, driver={"version": "590.44.1"}), node="node-1"
    )
    before = hardware.describe("dgx-h100", "node-1")
    assert found.driver.version == "590.44.1"
    assert [gpu.uuid for gpu in found.gpus] == [gpu.uuid for gpu in before.gpus]


def test_a_node_file_of_another_node_or_with_a_mistake_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="describes node-1, not node-2"):
        hardware.describe_file(node_file(tmp_path), node="node-2")
    with pytest.raises(LabError, match="majors"):
        hardware.describe_file(node_file(tmp_path, node={"majors": {"x": 1}}), node="node-1")
    with pytest.raises(LabError, match="No such file"):
        hardware.describe_file(tmp_path / "missing.yaml", node="node-1")


def test_who_enters_the_node_finds_the_library_and_the_state_of_its_new_driver(
    tmp_path: Path,
) -> None:
    machine = MachineDir(tmp_path)
    login = {**hardware.login_environment(hardware.describe("dgx-h100", "node-1")), "PATH": "/bin"}
    plan = machine_spec.Machine("node-1", {"TMPDIR": "/run"}, (), login)
    machine.plan_file.write_text(machine_spec.encode(plan))
    file = node_file(tmp_path, driver={"version": "590.44.1"})
    files.replace_hardware(machine, file.read_bytes(), hardware.describe_file(file, "node-1"))
    changed = machine_spec.decode(machine.plan_file.read_text())
    assert "/nvidia/590.44.1/" in changed.login["NVDRA_SIM_STATE"]
    assert changed.login["PATH"] == "/bin"
    assert machine.on_host(hardware.NODE_FILE).read_bytes() == file.read_bytes()
