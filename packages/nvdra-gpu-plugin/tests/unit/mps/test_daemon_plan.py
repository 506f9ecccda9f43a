# SPDX-License-Identifier: Apache-2.0
"""Which MPS control daemons a claim needs, and what its record says of them."""

from typing import Any

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import ClaimUID, GpuUUID, NodeName
from nvdra_api.quantity import Quantity
from nvdra_api.resource.claims import ResourceClaim
from nvdra_api.v1beta1 import GpuConfig, MigDeviceConfig
from nvdra_api.v1beta1.gpu_config import GpuSharing
from nvdra_api.v1beta1.mig_device_config import MigDeviceSharing
from nvdra_api.v1beta1.sharing import MpsConfig
from nvdra_gpu_plugin.claims import plan
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.devices.steps import SetComputeMode, ShareByMps
from nvdra_gpu_plugin.mps import daemon_plan
from nvdra_runtime.claims.opaque_configs import ConfiguredResult
from nvdra_testing.hardware.gpus import divisible, h100, in_mig_mode
from nvdra_testing.node.divisible_node import allocated

NODE = NodeName("node-a")
MADE = "gpu-2-mig-3g40gb-9-4"
INVENTORY = Inventory(
    (
        h100(0),
        h100(1),
        divisible(2, (9, 4)),
        h100(3, compute_capability="6.1"),
        in_mig_mode(4, (19, 4), (19, 5)),
    )
)
MIG_DEVICES = tuple(each.name for each in INVENTORY.gpus[4].mig_devices)
GATES = FeatureGates.parse("MPSSupport=true")


def planned(
    config: MpsConfig | None,
    *devices: str,
    entries: tuple[int, ...] = (),
    requests: tuple[str, ...] = (),
    admin: str = "",
) -> GpuClaimRecord:
    """The record of a claim whose devices have this config, each from an entry of the claim."""
    claim: ResourceClaim = allocated("uid-1", *devices)
    assert claim.status.allocation is not None
    configured = []
    for at, result in enumerate(claim.status.allocation.devices.results):
        found: Any = (
            MigDeviceConfig(sharing=MigDeviceSharing(strategy="MPS", mps_config=config))
            if "mig" in result.device
            else GpuConfig(sharing=GpuSharing(strategy="MPS", mps_config=config))
        )
        if result.device == admin:
            result = result.model_copy(update={"admin_access": True})
        if requests:
            result = result.model_copy(update={"request": requests[at]})
        index = entries[at] if entries else 0
        configured.append(ConfiguredResult(result, found.normalized(GATES), index))
    ids = {name: f"k8s.gpu.nvidia.com/device={name}-g" for name in INVENTORY.by_name}
    return plan.make(claim, configured, INVENTORY, SpecGeneration("g", ids), NODE)


def refusal(config: MpsConfig, *devices: str) -> str:
    with pytest.raises(PermanentError) as caught:
        planned(config, *devices)
    assert caught.value.reason is Reason.INVALID_CONFIG
    return str(caught.value)


def test_the_id_of_a_daemon_is_that_of_the_reference_driver() -> None:
    uid = ClaimUID("9a0d4a54-1a3b-4d0c-b6a4-54a1f0f0c001")
    uuids = [GpuUUID("GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86")]
    assert daemon_plan.daemon_id(uid, uuids) == f"{uid}-a8cac"
    several = [GpuUUID("GPU-b"), GpuUUID("GPU-a")]
    assert daemon_plan.daemon_id(uid, several) == daemon_plan.daemon_id(uid, several[::-1])


def test_gpus_with_one_config_share_a_daemon_which_starts_after_their_modes_are_set() -> None:
    record = planned(None, "gpu-1", "gpu-0")
    assert [step.step for step in record.steps] == [
        "set-compute-mode",
        "set-compute-mode",
        "share-by-mps",
    ]
    (daemon,) = record.daemons
    assert daemon.devices == ("gpu-1", "gpu-0")
    assert record.uuids_of(daemon) == ("GPU-0", "GPU-1")
    assert [each.mode for each in record.steps if isinstance(each, SetComputeMode)] == [3, 3]
    assert record.has_own_spec


def test_gpus_with_two_entries_of_the_same_content_have_two_daemons() -> None:
    record = planned(None, "gpu-0", "gpu-1", entries=(0, 1), requests=("a", "b"))
    assert [step.devices for step in record.daemons] == [("gpu-0",), ("gpu-1",)]


def test_each_mig_device_has_a_daemon_of_its_own() -> None:
    """A process of CUDA has one MIG device at most, and so has a server of MPS."""
    record = planned(None, *MIG_DEVICES, entries=(0, 0), requests=("a", "b"))
    assert [step.devices for step in record.daemons] == [(name,) for name in MIG_DEVICES]


def test_a_request_with_several_daemons_is_refused_because_a_container_has_one() -> None:
    with pytest.raises(PermanentError, match="a container can connect to one") as caught:
        planned(None, *MIG_DEVICES)
    assert caught.value.reason is Reason.INVALID_CONFIG
    assert MIG_DEVICES[1] in caught.value.message


def test_each_client_gets_its_device_and_its_daemon() -> None:
    (device,) = planned(None, "gpu-0").devices
    assert device.cdi_ids == (
        "k8s.gpu.nvidia.com/device=gpu-0-g",
        "k8s.gpu.nvidia.com/claim-device=uid-1-gpu-0-mps",
    )


def test_a_mig_device_that_is_made_for_the_claim_is_shared_when_it_exists() -> None:
    record = planned(
        MpsConfig(default_per_device_pinned_memory_limit={"MIG-x": Quantity.parse("1Gi")}), MADE
    )
    assert [step.step for step in record.steps] == ["make-mig-device", "share-by-mps"]
    (daemon,) = record.daemons
    assert record.uuids_of(daemon) == ()
    assert daemon.gpu == "GPU-2"


@pytest.mark.parametrize(
    ("gpus", "devices", "is_mig", "gib"),
    [(1, 1, False, 64), (8, 1, False, 8), (8, 8, False, 64), (8, 1, True, 8 / 7)],
)
def test_shared_memory_of_all_daemons_is_half_of_the_nodes(
    gpus: int, devices: int, is_mig: bool, gib: float
) -> None:
    found = daemon_plan.shm_kib(128 << 20, gpus, devices, is_mig=is_mig)
    assert found == int(gib * (1 << 20))


@pytest.mark.parametrize("memory_kib", [0, 1 << 20])
def test_shared_memory_is_never_less_than_that_of_any_container(memory_kib: int) -> None:
    assert daemon_plan.shm_kib(memory_kib, 0, 1, is_mig=True) == max(memory_kib // 14, 64 << 10)


def test_who_only_monitors_a_gpu_is_no_client() -> None:
    record = planned(None, "gpu-0", "gpu-1", admin="gpu-1")
    (daemon,) = record.daemons
    assert daemon.devices == ("gpu-0",)
    assert [device.mps_cdi_id != "" for device in record.devices] == [True, False]


def test_what_the_config_says_is_in_the_record() -> None:
    config = MpsConfig(
        default_active_thread_percentage=50,
        default_pinned_device_memory_limit=Quantity.parse("10Gi"),
        default_per_device_pinned_memory_limit={"1": Quantity.parse("2Gi")},
        multi_user=True,
    )
    record = planned(config, "gpu-0", "gpu-1")
    read = GpuClaimRecord.model_validate_json(record.model_dump_json())
    assert read == record
    (daemon,) = read.daemons
    assert daemon == ShareByMps(
        gpu=GpuUUID("GPU-0"),
        device=daemon.device,
        devices=daemon.devices,
        thread_percentage=50,
        default_limit="10Gi",
        device_limits={"1": "2Gi"},
        is_multi_user=True,
    )
    found = daemon_plan.memory_limits(daemon, record.ref, record.uuids_of(daemon))
    assert found == {"GPU-0": 10240, "GPU-1": 2048}


def test_a_limit_for_another_device_is_refused_before_anything_is_changed() -> None:
    config = MpsConfig(default_per_device_pinned_memory_limit={"2": Quantity.parse("1Gi")})
    text = refusal(config, "gpu-0", "gpu-1")
    assert "invalid device index: 2" in text
    assert "GPU-0, GPU-1" in text


def test_several_users_need_volta_and_every_older_gpu_is_named() -> None:
    text = refusal(MpsConfig(multi_user=True), "gpu-3", "gpu-0")
    assert "gpu-3 (GPU-3) has 6.1" in text
    assert "gpu-0" not in text
    planned(MpsConfig(), "gpu-3")


def test_another_attempt_goes_on_with_the_run_and_the_modes_that_the_first_has_found() -> None:
    record = planned(None, "gpu-0")
    found: dict[str, dict[str, object]] = {
        "set-compute-mode": {"former": 2},
        "share-by-mps": {"run": "r1"},
    }
    started = record.with_steps(
        tuple(step.model_copy(update=found[step.step]) for step in record.steps)
    )
    assert record.has_same_plan(started)
    assert record.resumed(started) == started
    other = planned(MpsConfig(default_active_thread_percentage=10), "gpu-0")
    assert not other.has_same_plan(started)
