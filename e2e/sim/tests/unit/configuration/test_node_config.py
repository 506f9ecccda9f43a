# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pynvml
import pytest
from nvdra_sim.configuration import node_config
from nvdra_sim.errors import ConfigError

HEAD = {"apiVersion": "nvdra.sim/v1", "kind": "Node", "metadata": {"name": "node-0"}}

EXAMPLE = """
apiVersion: nvdra.sim/v1
kind: Node
metadata: {name: dgx-lab-07}
driver:
  version: 580.95.05
  cuda: "13.0"
  branch: r580_95
  module_loaded: true
  api_level: 580
node:
  seed: 7
  init_without_gpus: success
  privilege: euid
  visibility: auto
  boot_id: 0d2f6c1e-7a44-4a53-9c7b-6a1f0a3f5d11
  iommu: {enabled: true, iommufd: true}
  imex: {channel_count: 2048, create_channel0: false}
  majors: {nvidia-uvm: 507, nvidia-caps: 505, nvidia-caps-imex-channels: 506}
profile: dgx-h100
overrides:
  gpu_count: 8
  uuid_prefix: lab07
  gpus:
    - index: 0
      uuid: GPU-9d3c1a52-6b0e-5f4d-8c7a-20f1e4b7a911
      mig: {mode: on, instances: [{profile: 3g.40gb, start: 4, compute: [3c]}]}
    - index: 5
      bound_driver: vfio-pci
fabric: {call: success, bring_up_ms: 0}
mig: {uuid: stable, gi_id_order: normal, sparse_index: false, reuse_handles: false}
latency: {preset: instant}
faults: []
"""


def problems(**sections: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        node_config.load({**HEAD, **sections})
    return [problem.path for problem in caught.value.problems]


def test_the_example_of_the_specification_loads(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(EXAMPLE)
    node = node_config.load(file)
    assert node.boot_id == "0d2f6c1e-7a44-4a53-9c7b-6a1f0a3f5d11"
    assert node.gpus[0].uuid == "GPU-9d3c1a52-6b0e-5f4d-8c7a-20f1e4b7a911"
    assert node.gpus[0].mig is not None
    assert node.gpus[0].mig.enabled
    (instance,) = node.gpus[0].mig.instances
    assert (instance.profile, instance.start, instance.id) == ("3g.40gb", 4, 2)
    assert [(one.start, one.size) for one in instance.compute] == [(0, 3)]
    assert [gpu.bound_driver for gpu in node.gpus].count("vfio-pci") == 1
    assert node.gpus[5].bound_driver == "vfio-pci"


def test_the_boot_id_is_the_hosts_unless_given() -> None:
    node = node_config.load({**HEAD, "profile": "none"})
    assert node.boot_id_is_host
    assert node.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.mark.parametrize(
    ("version", "cuda"),
    [("535.54.03", 12020), ("550.90.07", 12040), ("575.57.08", 12090), ("580.95.05", 13000)],
)
def test_cuda_follows_the_driver_branch(version: str, cuda: int) -> None:
    node = node_config.load({**HEAD, "profile": "none", "driver": {"version": version}})
    assert node.driver.cuda_version == cuda
    assert node.driver.api_level == int(version.split(".")[0])


def test_cuda_can_be_given() -> None:
    node = node_config.load({**HEAD, "profile": "none", "driver": {"cuda": "12.8"}})
    assert node.driver.cuda_version == 12080
    assert node.driver.nvml_version == "12.580.95.05"


def test_a_driver_older_than_the_table_needs_its_cuda_version() -> None:
    assert problems(profile="none", driver={"version": "470.57.02"}) == ["driver.version"]


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"profil": "t4"}, "profil"),
        ({"profile": "t4", "node": {"seeds": 1}}, "node.seeds"),
        (
            {"profile": "t4", "overrides": {"gpus": [{"index": 1, "colour": 3}]}},
            "overrides.gpus.0.colour",
        ),
        ({"gpus": [{"model": "t4", "bus_id": "0000:3b:00.0", "sm": 1}]}, "gpus.0.sm"),
        ({"profile": "t4", "fabric": {"speed": 3}}, "fabric.speed"),
    ],
)
def test_an_unknown_key_is_named_with_its_path(sections: dict[str, Any], path: str) -> None:
    assert problems(**sections) == [path]


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({}, "profile"),
        ({"profile": "t4", "gpus": []}, "profile"),
        ({"profile": "dgx-z900"}, "profile"),
        ({"profile": "t4", "overrides": {"gpu_count": 5}}, "overrides.gpu_count"),
        ({"gpus": [{"model": "t4"}]}, "gpus.0.bus_id"),
        ({"gpus": [{"model": "t4", "bus_id": "3b"}]}, "gpus.0.bus_id"),
        ({"gpus": [{"model": "t5", "bus_id": "0000:3b:00.0"}]}, "gpus.0.model"),
        ({"profile": "t4", "node": {"majors": {"nvidia-caps": 507}}}, "node.majors.nvidia_caps"),
        ({"profile": "t4", "faults": [{"match": {"gpu": 9}}]}, "faults.0.match.gpu"),
        ({"profile": "t4", "faults": [{"match": {}, "result": "BROKEN"}]}, "faults.0.result"),
        ({"profile": "t4", "fabric": {"domain": "nvl"}}, "fabric.cluster_uuid"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_path(sections: dict[str, Any], path: str) -> None:
    assert problems(**sections) == [path]


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ({"index": 4}, "overrides.gpus.0.index"),
        ({"index": 1, "minor": 0}, "gpus.1.minor"),
        ({"index": 0, "uuid": "GPU-1"}, "overrides.gpus.0.uuid"),
        ({"index": 0, "minor": 32}, "overrides.gpus.0.minor"),
        ({"index": 0, "sms": 0}, "overrides.gpus.0.sms"),
        ({"index": 0, "mig": {"mode": True}}, "overrides.gpus.0.mig"),
        ({"index": 0, "bus_id": "3b:00"}, "overrides.gpus.0.bus_id"),
    ],
)
def test_an_override_that_cannot_be_is_refused_with_its_path(
    override: dict[str, Any], path: str
) -> None:
    assert problems(profile="t4", overrides={"gpus": [override]}) == [path]


def test_two_boards_cannot_share_a_slot_or_a_uuid() -> None:
    uuid = "GPU-9d3c1a52-6b0e-5f4d-8c7a-20f1e4b7a911"
    board = {"model": "t4", "bus_id": "0000:3b:00.0", "uuid": uuid}
    assert problems(gpus=[board, board]) == ["gpus.1.uuid", "gpus.1.bus_id"]


def test_seventeen_boards_are_too_many() -> None:
    boards = [{"model": "t4", "bus_id": f"0000:{bus:02x}:00.0"} for bus in range(1, 18)]
    assert problems(gpus=boards) == ["gpus"]


def test_inline_boards_are_put_in_bus_order() -> None:
    boards = [
        {"model": "t4", "bus_id": "0001:02:00.0"},
        {"model": "l40s", "bus_id": "0000:C1:00.0"},
    ]
    gpus = node_config.load({**HEAD, "gpus": boards}).gpus
    assert [(gpu.index, gpu.model, gpu.bus_id) for gpu in gpus] == [
        (0, "l40s", "0000:c1:00.0"),
        (1, "t4", "0001:02:00.0"),
    ]


def test_any_column_of_a_board_can_be_overridden() -> None:
    changes = {"index": 2, "memory_mib": 1024, "addressing": "unsupported", "serial": None}
    extra = {"memory": {"nvml": "unsupported"}, "virtualization": 1}
    node = node_config.from_profile("t4", "node-0", {"overrides": {"gpus": [{**changes, **extra}]}})
    changed, other = node.gpus[2], node.gpus[1]
    assert (changed.memory_mib, changed.addressing, changed.serial) == (1024, None, None)
    assert (changed.memory_nvml, changed.virtualization) == (False, 1)
    assert (other.memory_mib, other.addressing, other.memory_nvml) == (15360, 1, True)


def test_fewer_boards_than_the_profile_has_are_its_first_ones() -> None:
    whole = node_config.from_profile("dgx-h100", "node-0")
    part = node_config.from_profile("dgx-h100", "node-0", {"overrides": {"gpu_count": 3}})
    assert part.gpus == whole.gpus[:3]


def test_latency_is_a_preset_with_exceptions() -> None:
    node = node_config.from_profile("none", "n", {"latency": {"preset": "realistic", "init": 7}})
    assert node.latency_ms == {
        "handle_by_uuid": 100,
        "gi_create": 300,
        "gi_destroy": 1000,
        "mig_mode": 2000,
        "init": 7,
        "other": 0,
    }
    assert set(node_config.from_profile("none", "n").latency_ms.values()) == {0}


def test_fault_rules_name_codes_and_boards_as_people_do() -> None:
    uuid = node_config.from_profile("t4", "node-0").gpus[3].uuid
    rules = [
        {"match": {"function": "nvmlDeviceGetName", "gpu": uuid}, "result": "GPU_IS_LOST"},
        {"match": {"function": "nvml*"}, "delay_ms": 200},
        {"match": {"gpu": 1}, "result": "SUCCESS", "activation_status": 19, "times": 3},
    ]
    faults = node_config.from_profile("t4", "node-0", {"faults": rules}).faults
    assert [(fault.gpu, fault.result, fault.delay_ms) for fault in faults] == [
        (3, pynvml.NVML_ERROR_GPU_IS_LOST, 0),
        (None, None, 200),
        (1, 0, 0),
    ]
    assert (faults[2].activation_status, faults[2].times, faults[0].times) == (19, 3, None)


def test_openable_nodes_stand_on_devices_that_every_kernel_has() -> None:
    node = node_config.from_profile("t4", "node-0", {"render": {"nodes": "openable"}})
    assert {(gpu.node.major, gpu.node.minor) for gpu in node.gpus} == {(1, 3)}
    assert (node.control_node.major, node.control_node.minor) == (1, 5)


def test_what_is_not_yaml_is_a_config_error(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    for content in (b"a: [1\nb: 2", b"a: \xff"):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="not YAML"):
            node_config.load(file)
