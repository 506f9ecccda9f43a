# SPDX-License-Identifier: Apache-2.0
"""Common edits and devices to one spec (docs/reference/cdi.md §18)."""

from hypothesis import given
from hypothesis import strategies as st
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Hook, Mount
from nvdra_cdi.nvidia.assembly import assemble

KIND = "k8s.gpu.nvidia.com/device"
NODE = DeviceNode("/dev/nvidia0")


def test_repetitions_inside_one_set_of_edits_go() -> None:
    hook = Hook("createContainer", "/h", ("h",))
    edits = ContainerEdits(("A=b",) * 2, (NODE,) * 2, hooks=(hook,) * 2, additional_gids=(5, 4, 5))
    spec = assemble(KIND, edits, [])
    assert spec.container_edits == ContainerEdits(
        ("A=b",), (NODE,), hooks=(hook,), additional_gids=(4, 5)
    )


def test_what_is_common_goes_from_the_devices() -> None:
    common = ContainerEdits(env=("A=b",), device_nodes=(DeviceNode("/dev/nvidiactl"),))
    spec = assemble(KIND, common, [Device("gpu-0", common + ContainerEdits(device_nodes=(NODE,)))])
    assert spec.devices[0].container_edits == ContainerEdits(device_nodes=(NODE,))


def test_a_device_that_is_all_common_keeps_its_edits() -> None:
    common = ContainerEdits(env=("A=b",))
    assert assemble(KIND, common, [Device("gpu-0", common)]).devices[0].container_edits == common


def test_parents_are_mounted_before_what_lies_in_them() -> None:
    places = ("/usr/bin/b", "/a/b/c/d", "/usr/bin/A", "/run", "/")
    edits = ContainerEdits(mounts=tuple(Mount("/x", place) for place in places))
    mounts = assemble(KIND, edits, []).container_edits.mounts
    order = [mount.container_path for mount in mounts]
    assert order == ["/", "/run", "/usr/bin/A", "/usr/bin/b", "/a/b/c/d"]


def test_environment_and_hooks_keep_their_order() -> None:
    hooks = tuple(Hook("createContainer", path) for path in ("/z", "/a"))
    edits = ContainerEdits(env=("Z=1", "A=1"), hooks=hooks)
    assert assemble(KIND, edits, []).container_edits == edits


@given(st.lists(st.from_regex(r"[a-z0-9]{1,4}", fullmatch=True), unique=True))
def test_devices_come_by_name_whatever_the_order_they_were_given_in(names: list[str]) -> None:
    devices = [Device(name, ContainerEdits(env=(f"N={name}",))) for name in names]
    spec = assemble(KIND, ContainerEdits(), devices)
    assert spec == assemble(KIND, ContainerEdits(), reversed(devices))
    assert [device.name for device in spec.devices] == sorted(names)


def test_the_version_is_the_lowest_that_the_result_needs() -> None:
    assert assemble(KIND, ContainerEdits(), [Device("gpu-0", ContainerEdits(("A=",)))]).version == (
        "0.3.0"
    )
