# SPDX-License-Identifier: Apache-2.0
"""Inventory → pool: in order of PCI address and name, split where the server wants it."""

from collections.abc import Collection

from nvdra_api.gates import FeatureGates
from nvdra_api.ids import DeviceName, NodeName
from nvdra_api.resource.slices import DeviceAttribute, DeviceTaint
from nvdra_gpu_plugin.devices.inventory import Fault, Gpu, Inventory
from nvdra_gpu_plugin.publishing import layout
from nvdra_runtime.resourceslices.pool import Slice
from nvdra_testing.hardware.gpus import h100, in_mig_mode

NODE = NodeName("node-a")
GPU_1 = DeviceName("gpu-1")


def names(inventory: Inventory) -> list[list[str]]:
    pool = layout.pool(inventory, FeatureGates(), NODE)
    return [[device.name for device in slice_.devices] for slice_ in pool.slices]


def test_a_node_without_gpus_has_one_empty_slice() -> None:
    assert names(Inventory()) == [[]]


def test_a_board_in_mig_mode_is_not_offered_whole() -> None:
    assert names(Inventory((h100(0), h100(1, is_mig_enabled=True), h100(2)))) == [
        ["gpu-0", "gpu-2"]
    ]


def test_of_a_gpu_in_mig_mode_the_mig_devices_are_offered() -> None:
    gpus = (h100(0), in_mig_mode(1, (9, 0), (19, 5), (19, 4)), h100(2))
    assert names(Inventory(gpus)) == [
        [
            "gpu-0",
            "gpu-1-mig-1g10gb-19-4",
            "gpu-1-mig-1g10gb-19-5",
            "gpu-1-mig-3g40gb-9-0",
            "gpu-2",
        ]
    ]


def test_a_gpu_that_is_not_well_taints_all_its_mig_devices() -> None:
    taint = DeviceTaint(key="gpu.nvidia.com/xid", value="48", effect="NoSchedule")
    cut = in_mig_mode(1, (9, 0), (19, 4))
    inventory = Inventory((h100(0), cut))
    (only,) = layout.pool(inventory, FeatureGates(), NODE, Slice(), {cut.uuid: (taint,)}).slices
    assert [device.taints for device in only.devices] == [(), (taint,), (taint,)]


def test_mig_devices_stay_published_while_their_gpu_may_still_be_starting() -> None:
    former = published(h100(0), in_mig_mode(1, (9, 0), (19, 4)))
    known = Inventory((h100(0),))
    assert layout.still_awaited(former, known, (GPU_1,), ()) == Slice(former.devices[1:])
    assert layout.still_awaited(former, known, (GPU_1,), ("gpu-1",)) == Slice()
    cut_anew = Inventory((h100(0), in_mig_mode(1)))
    assert layout.still_awaited(former, cut_anew, (GPU_1,), ()) == Slice()


def test_a_faulty_board_is_left_out() -> None:
    left = Inventory((h100(0), h100(1))).without([Fault("gpu-1", "no device node")])
    assert names(left) == [["gpu-0"]]


def published(*gpus: Gpu) -> Slice:
    (only,) = layout.pool(Inventory(gpus), FeatureGates(), NODE).slices
    return only


def awaited_names(
    former: Slice,
    known: Inventory,
    awaited: Collection[DeviceName | None],
    faulty: Collection[str],
) -> list[str]:
    found = layout.still_awaited(former, known, awaited, faulty)
    return [str(device.name) for device in found.devices]


def test_a_board_that_may_still_be_starting_stays_as_it_was_published() -> None:
    former = published(h100(0), h100(1), h100(2))
    known = Inventory((h100(0), h100(2)))
    awaited = layout.still_awaited(former, known, (GPU_1,), ())
    assert awaited == Slice(former.devices[1:2])
    assert layout.pool(known, FeatureGates(), NODE, awaited) == layout.pool(
        Inventory((h100(0), h100(1), h100(2))), FeatureGates(), NODE
    )


def test_a_board_that_nobody_waits_for_does_not_stay() -> None:
    former = published(h100(0), h100(1), h100(2), h100(3))
    known = Inventory((h100(0),))
    assert awaited_names(former, known, (GPU_1,), ()) == ["gpu-1"]
    names = awaited_names(former, known, (None,), ("gpu-2",))
    assert names == ["gpu-1", "gpu-3"], "nobody knows the name, but gpu-2 has failed"
    assert awaited_names(former, known, (), ()) == []


def test_a_board_that_has_another_name_now_does_not_stay_under_the_old_one() -> None:
    former = published(h100(1, uuid="GPU-a"), h100(2, uuid="GPU-b"))
    known = Inventory((h100(2, uuid="GPU-a"),))
    assert awaited_names(former, known, (GPU_1,), ()) == []


def test_sixty_four_devices_are_the_most_in_one_slice() -> None:
    found = names(Inventory(tuple(h100(minor) for minor in range(130))))
    assert [len(slice_) for slice_ in found] == [64, 64, 2]
    assert [name for slice_ in found for name in slice_] == [f"gpu-{n}" for n in range(130)]


def test_the_gate_for_lists_reaches_the_attributes() -> None:
    pool = layout.pool(
        Inventory((h100(0),)), FeatureGates.parse("DRAListTypeAttributes=true"), NODE
    )
    (device,) = pool.slices[0].devices
    assert device.attributes["resource.kubernetes.io/numaNode"] == DeviceAttribute(int_values=(0,))


def test_taints_are_those_of_today_also_of_a_gpu_that_has_not_described_itself_yet() -> None:
    """What an earlier process has published may have other taints."""
    lost = DeviceTaint(key="gpu.nvidia.com/gpu-lost", effect="NoSchedule")
    before = published(h100(0), h100(1)).devices
    former = Slice(tuple(each.model_copy(update={"taints": (lost,)}) for each in before))
    awaited = layout.still_awaited(former, Inventory(), [GPU_1, DeviceName("gpu-0")], set())
    taints: layout.Taints = {h100(1).uuid: (lost,), h100(2).uuid: (lost,)}
    pool = layout.pool(Inventory((h100(2),)), FeatureGates(), NODE, awaited, taints)
    assert [(each.name, each.taints) for each in pool.slices[0].devices] == [
        ("gpu-0", ()),
        ("gpu-1", (lost,)),
        ("gpu-2", (lost,)),
    ]
