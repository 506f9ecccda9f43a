# SPDX-License-Identifier: Apache-2.0
"""What a container gets of GPUs that are passed to its virtual machine."""

import itertools

import pytest
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import DeviceName, PciAddress
from nvdra_api.v1beta1 import VfioDeviceConfig
from nvdra_api.v1beta1.vfio_device_config import IommuConfig
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Spec
from nvdra_cdi.nvidia.assembly import assemble
from nvdra_gpu_plugin.cdi import vfio_edits
from nvdra_gpu_plugin.cdi.vfio_edits import Backend, BoundGpu

FIRST = BoundGpu(DeviceName("gpu-vfio-0"), PciAddress("0000:18:00.0"), 42, "vfio1")
SECOND = BoundGpu(DeviceName("gpu-vfio-1"), PciAddress("0000:2a:00.0"), 57, "vfio0")
WITHOUT_NODE = BoundGpu(SECOND.device, SECOND.pci, 57)
VOID = ("NVIDIA_VISIBLE_DEVICES=void",)


def config(policy: str = "PreferIommuFD", *, has_control: bool = False) -> VfioDeviceConfig:
    iommu = IommuConfig(backend_policy=policy, enable_api_device=has_control)
    return VfioDeviceConfig(iommu=iommu)


def paths(edits: ContainerEdits) -> list[str]:
    return [node.path for node in edits.device_nodes]


def test_a_device_has_the_node_of_its_group_and_hides_gpus_from_nvidias_runtime() -> None:
    assert vfio_edits.of_devices([FIRST, SECOND], Backend.LEGACY) == {
        "gpu-vfio-0": ContainerEdits(env=VOID, device_nodes=(DeviceNode("/dev/vfio/42"),)),
        "gpu-vfio-1": ContainerEdits(env=VOID, device_nodes=(DeviceNode("/dev/vfio/57"),)),
    }


def test_with_iommufd_a_device_has_its_own_node_alone() -> None:
    found = vfio_edits.of_devices([FIRST, SECOND], Backend.IOMMUFD)
    assert [paths(each) for each in found.values()] == [
        ["/dev/vfio/devices/vfio1"],
        ["/dev/vfio/devices/vfio0"],
    ]


@pytest.mark.parametrize(
    ("backend", "control"), [(Backend.LEGACY, "/dev/vfio/vfio"), (Backend.IOMMUFD, "/dev/iommu")]
)
def test_the_control_node_is_the_back_ends(backend: Backend, control: str) -> None:
    (edits,) = vfio_edits.of_devices([FIRST], backend, enable_api_device=True).values()
    assert paths(edits)[0] == control
    assert len(edits.device_nodes) == 2
    both = set(
        itertools.chain(
            *(
                paths(each)
                for each in vfio_edits.of_devices(
                    [FIRST, SECOND], backend, enable_api_device=True
                ).values()
            )
        )
    )
    assert len(both) == 3


def test_the_nodes_are_found_where_the_runtime_has_them() -> None:
    (edits,) = vfio_edits.of_devices([FIRST], Backend.LEGACY, dev_root="/run/dev/").values()
    assert edits.device_nodes == (DeviceNode("/dev/vfio/42", "/run/dev/vfio/42"),)


def test_a_container_with_several_gpus_of_a_group_has_the_groups_node_once() -> None:
    """By the rule of container runtimes, `AddDevice`, which nvdra_cdi follows."""
    from nvdra_cdi import runtime_spec

    twin = BoundGpu(DeviceName("gpu-vfio-1"), SECOND.pci, FIRST.iommu_group)
    found = vfio_edits.of_devices([FIRST, twin], Backend.LEGACY, enable_api_device=True)
    made = ContainerEdits()
    for edits in found.values():
        nodes = tuple(
            DeviceNode(node.path, type="c", major=243, minor=number)
            for number, node in enumerate(edits.device_nodes)
        )
        made += ContainerEdits(env=edits.env, device_nodes=nodes)
    container = runtime_spec.with_edits({"ociVersion": "1.2.0"}, made)
    assert [node["path"] for node in container["linux"]["devices"]] == [
        "/dev/vfio/vfio",
        "/dev/vfio/42",
    ]
    assert container["process"]["env"] == list(VOID)


def test_the_devices_of_a_spec_stay_apart_when_it_is_assembled() -> None:
    """One container may have the first request of the claim, and another one the second."""
    found = vfio_edits.of_devices([FIRST, SECOND], Backend.LEGACY)
    spec: Spec = assemble(
        "k8s.gpu.nvidia.com/claim-device",
        ContainerEdits(),
        [Device(f"uid-{name}", edits) for name, edits in found.items()],
    )
    assert [paths(device.container_edits) for device in spec.devices] == [
        ["/dev/vfio/42"],
        ["/dev/vfio/57"],
    ]
    assert spec.container_edits == ContainerEdits()


@pytest.mark.parametrize(
    ("policy", "gpus", "has_iommufd", "backend", "reason"),
    [
        ("LegacyOnly", [FIRST], True, Backend.LEGACY, "backendPolicy is LegacyOnly"),
        ("PreferIommuFD", [FIRST, SECOND], True, Backend.IOMMUFD, "the node has iommufd"),
        ("PreferIommuFD", [FIRST], False, Backend.LEGACY, "the node has no /dev/iommu"),
        (
            "PreferIommuFD",
            [FIRST, WITHOUT_NODE],
            True,
            Backend.LEGACY,
            "gpu-vfio-1 has no node in /dev/vfio/devices",
        ),
    ],
)
def test_the_back_end_is_the_same_for_all_devices_and_says_why(
    policy: str, gpus: list[BoundGpu], has_iommufd: bool, backend: Backend, reason: str
) -> None:
    found = vfio_edits.choose_backend(config(policy), gpus, has_iommufd=has_iommufd)
    assert found.backend is backend
    assert reason in found.reason
    nodes = [
        path
        for edits in vfio_edits.of_devices(gpus, found.backend).values()
        for path in paths(edits)
    ]
    assert {path.startswith("/dev/vfio/devices/") for path in nodes} == {backend is Backend.IOMMUFD}


def test_a_config_without_iommu_is_the_legacy_back_end() -> None:
    found = vfio_edits.choose_backend(VfioDeviceConfig(), [FIRST], has_iommufd=True)
    assert found.backend is Backend.LEGACY


def test_two_policies_in_one_claim_are_refused_with_both_devices() -> None:
    configs = {FIRST.device: config("LegacyOnly"), SECOND.device: config()}
    with pytest.raises(PermanentError, match="gpu-vfio-0 has the backendPolicy Legacy") as raised:
        vfio_edits.agreed_config(configs)
    assert raised.value.reason is Reason.INVALID_CONFIG
    assert "gpu-vfio-1 of the same claim PreferIommuFD" in raised.value.message


def test_one_request_with_the_control_node_gives_it_to_all_of_the_claim() -> None:
    """A virtual machine that opens its devices needs one control node, whichever asks for it."""
    configs = {FIRST.device: config(), SECOND.device: config(has_control=True)}
    assert vfio_edits.agreed_config(configs) == config(has_control=True)
    assert vfio_edits.agreed_config({FIRST.device: config()}) == config()


def test_a_node_that_is_gone_since_the_choice_is_an_error_that_time_mends() -> None:
    with pytest.raises(RetryableError, match="gpu-vfio-1") as raised:
        vfio_edits.of_devices([FIRST, WITHOUT_NODE], Backend.IOMMUFD)
    assert raised.value.reason is Reason.DEVICE_NODE_MISSING
