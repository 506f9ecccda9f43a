# SPDX-License-Identifier: Apache-2.0
"""Probes, metrics and slices of a node that works, and of one that does not."""

import pytest
from nvdra_testing.node.rig import Rig

PROFILES = ("dgx-a100", "dgx-h100", "hgx-h200", "b200", "gb200-nvl72", "t4", "l40s", "rtx-pro-6000")

ATTRIBUTES = {
    "architecture",
    "brand",
    "cudaComputeCapability",
    "cudaDriverVersion",
    "driverVersion",
    "productName",
    "resource.kubernetes.io/pciBusID",
    "resource.kubernetes.io/pcieRoot",
    "resource.kubernetes.io/numaNode",
    "type",
    "uuid",
    "addressingMode",
}


@pytest.mark.parametrize("rig", PROFILES, indirect=True)
async def test_every_gpu_of_the_node_is_published_with_what_users_select_on(rig: Rig) -> None:
    await rig.start()
    devices = rig.devices()
    nodes = {path.name for path in rig.node.roots.dev.glob("nvidia[0-9]*")}
    assert {name.removeprefix("gpu-") for name in devices} == {
        name.removeprefix("nvidia") for name in nodes
    }
    assert devices
    for device in devices.values():
        assert ATTRIBUTES - {"addressingMode"} <= set(device["attributes"])
        assert set(device["capacity"]) == {"memory"}


@pytest.mark.parametrize("rig", ["none"], indirect=True)
async def test_a_node_without_gpus_publishes_an_empty_pool(rig: Rig) -> None:
    await rig.start()
    (slice_,) = rig.slices()
    assert not slice_["spec"].get("devices")
    assert slice_["spec"]["pool"]["resourceSliceCount"] == 1


async def test_a_node_without_a_driver_stays_up_says_so_and_recovers_alone(rig: Rig) -> None:
    library = next(rig.node.roots.driver.glob("usr/lib/*/libnvidia-ml.so.1"))
    hidden = library.rename(library.with_name("hidden"))
    rig.process = rig.launch()
    await rig.kubelet.wait_registered("gpu.nvidia.com")
    await rig.wait_until(
        lambda: "libnvidia-ml.so.1" in rig.process.get("/readyz?verbose")[1], "the reason"
    )
    assert rig.process.get("/readyz")[0] == 503
    await rig.wait_until(lambda: len(rig.slices()) == 1, "an empty slice")
    assert rig.process.get("/healthz")[0] == 200
    await rig.wait_until(lambda: bool(rig.events("DriverMismatch")), "an event of the Node")
    assert rig.events("DriverMismatch")[0]["involvedObject"]["kind"] == "Node"
    claim = rig.create_claim("gpu-0")
    dra = await rig.kubelet.wait_registered("gpu.nvidia.com")
    assert "install or repair the NVIDIA driver" in (await dra.prepare([claim]))[claim.uid].error
    hidden.rename(library)
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "the driver to be found")
    await rig.wait_until(lambda: len(rig.devices()) == 8, "the GPUs")
    assert not (await dra.prepare([claim]))[claim.uid].error


async def test_nvml_that_does_not_initialise_is_told_and_tried_again(rig: Rig) -> None:
    rig.node.simctl(
        "fault", "add", "nvmlInit*", "--result", "LIB_RM_VERSION_MISMATCH", "--times", "1"
    )
    rig.process = rig.launch()
    await rig.wait_until(lambda: "NVML error 18" in rig.process.log.read_text(), "the reason")
    await rig.wait_until(lambda: len(rig.devices()) == 8, "the GPUs")


async def test_a_board_that_cannot_be_described_is_left_out_and_the_others_serve(rig: Rig) -> None:
    rig.node.simctl("gpu", "lose", "2")
    await rig.start()
    assert set(rig.devices()) == {f"gpu-{minor}" for minor in range(8) if minor != 2}
    assert "A GPU is not published" in rig.process.log.read_text()


async def test_metrics_count_in_the_references_series_beside_ours(rig: Rig) -> None:
    await rig.start()
    fine, refused = rig.create_claim("gpu-0"), rig.create_claim("gpu-99")
    await rig.dra.prepare([fine])
    await rig.dra.prepare([refused])
    _, text = rig.process.get("/metrics")
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    driver, node = 'driver="gpu.nvidia.com"', f'node="{rig.node.name}"'
    assert series[f'nvidia_dra_requests_total{{{driver},operation="prepare"}}'] == "1.0"
    assert series[f'nvidia_dra_requests_total{{{driver},operation="unprepare"}}'] == "0.0"
    held = f'nvidia_dra_prepared_devices{{{node},{driver},device_type="gpu"}}'
    reordered = f'nvidia_dra_prepared_devices{{device_type="gpu",{driver},{node}}}'
    assert series.get(held, series.get(reordered)) == "1.0"
    outcomes = [line for line in series if line.startswith("nvdra_claim_operation_seconds_count")]
    assert [line for line in outcomes if 'reason="UnknownDevice"' in line]
    assert fine.uid not in text
    assert fine.name not in text


@pytest.mark.protocol("S7")
async def test_a_slice_that_was_deleted_is_there_again_within_seconds(rig: Rig) -> None:
    await rig.start()
    (slice_,) = rig.slices()
    name, uid = slice_["metadata"]["name"], slice_["metadata"]["uid"]
    rig.server.request("DELETE", f"/apis/resource.k8s.io/v1/resourceslices/{name}")
    await rig.wait_until(lambda: len(rig.devices()) == 8, "the slice", timeout_s=10)
    assert rig.slices()[0]["metadata"]["uid"] != uid


async def test_a_gate_that_does_nothing_yet_is_told(rig: Rig) -> None:
    await rig.start("--feature-gates=FabricManagerPartitioning=true,DRAListTypeAttributes=false")
    (line,) = [each for each in rig.process.log.read_text().splitlines() if "no effect" in each]
    assert "FabricManagerPartitioning" in line
    assert "DRAListTypeAttributes" not in line
