# SPDX-License-Identifier: Apache-2.0
"""What the kubelet is told of a GPU, by what is known of it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from nvdra_api.ids import DeviceName
from nvdra_api.resource.slices import DeviceTaint
from nvdra_gpu_plugin.devices.inventory import Fault, Inventory
from nvdra_gpu_plugin.hardware.device_state import DeviceState, Snapshot
from nvdra_gpu_plugin.health import health_report
from nvdra_gpu_plugin.health.gpu_health import INFORMATIONAL, LOST_KEY, XID_KEY
from nvdra_gpu_plugin.health.vfio_health import PCI_SILENT, PCIE_ERRORS_KEY, PCIE_LINK_KEY
from nvdra_runtime.kubeletplugin.device_health import HealthStatus
from nvdra_testing.hardware.gpus import divisible, h100, mig_device

EARLIER, LATER = (datetime(2026, 8, 7, 16, minute, tzinfo=UTC) for minute in (0, 5))
XID_48 = DeviceTaint(key=XID_KEY, value="48", effect="NoSchedule", time_added=LATER)
LOST = DeviceTaint(key=LOST_KEY, effect="NoSchedule", time_added=EARLIER)
SPEC: Any = None  # nothing reads it
USABLE = DeviceState(Snapshot(Inventory((h100(3),)), SPEC))
HANGS = Fault("gpu-3", "gpu-3 has not answered NVML since noon")
UNMONITORED = {h100(3).uuid: "it does not report XIDs"}


def found(
    state: DeviceState = USABLE, *taints: DeviceTaint, unmonitored: Any = None
) -> tuple[str, str]:
    result = health_report.finding(h100(3).name, h100(3), state, taints, unmonitored or {})
    return result.status.name, result.message


def test_a_gpu_that_nothing_is_known_against_is_healthy() -> None:
    assert found() == ("HEALTHY", "")
    assert found(replace(USABLE, faults=(replace(HANGS, device="gpu-4"),))) == ("HEALTHY", "")


def test_a_tainted_gpu_is_unhealthy_since_the_first_taint_and_the_reason_is_said() -> None:
    result = health_report.finding(h100(3).name, h100(3), USABLE, (LOST, XID_48), UNMONITORED)
    assert result.status is HealthStatus.UNHEALTHY
    assert result.message.startswith("gpu-3 has fallen off the bus: ")
    assert "; gpu-3 has reported XID 48: drain and reset it" in result.message
    assert result.since == EARLIER


def test_a_gpu_that_cannot_be_used_is_unhealthy() -> None:
    assert found(replace(USABLE, faults=(HANGS,))) == ("UNHEALTHY", HANGS.text)


@pytest.mark.parametrize("taints", [(), (XID_48,)])
def test_during_a_release_of_nvml_only_what_was_wrong_before_is_known(
    taints: Sequence[DeviceTaint],
) -> None:
    released = replace(USABLE, is_released=True, faults=(HANGS,))
    assert found(released, *taints)[0] == ("UNHEALTHY" if taints else "UNKNOWN")


def test_without_a_driver_nothing_is_known() -> None:
    gone = DeviceState(node_fault=Fault("", "NVML cannot be loaded"))
    status, message = found(gone)
    assert (status, "NVML cannot be loaded" in message) == ("UNKNOWN", True)


def test_of_a_gpu_that_does_not_report_xids_nothing_is_known() -> None:
    assert found(unmonitored=UNMONITORED) == ("UNKNOWN", "gpu-3: it does not report XIDs")
    assert found(replace(USABLE, faults=(HANGS,)), unmonitored=UNMONITORED)[0] == "UNHEALTHY"


def test_what_can_be_made_on_a_gpu_is_known_before_a_pod_has_it_and_each_name_once() -> None:
    gpu = divisible(3, (19, 0), (9, 4))
    names = ("gpu-3-mig-1g10gb-19-0", "gpu-3-mig-3g40gb-9-4")
    assert health_report.device_names(gpu) == ("gpu-3", *names)
    made_by_hand = replace(gpu, mig_devices=(mig_device(gpu, 19, 0),))
    assert health_report.device_names(made_by_hand) == names
    assert health_report.device_names(h100(3)) == ("gpu-3",)


def test_a_vfio_device_is_unhealthy_by_its_own_taints_that_keep_pods_away() -> None:
    narrow = DeviceTaint(
        key=PCIE_LINK_KEY, value="x4-of-x16", effect=INFORMATIONAL, time_added=EARLIER
    )
    silent = DeviceTaint(key=LOST_KEY, value=PCI_SILENT, effect="NoExecute", time_added=LATER)
    errors = DeviceTaint(key=PCIE_ERRORS_KEY, effect="NoSchedule", time_added=LATER)
    name = DeviceName("gpu-vfio-3")
    for well in ((), (narrow,)):
        assert health_report.vfio_finding(name, well) == (HealthStatus.HEALTHY, "", None)
    ill = health_report.vfio_finding(name, (silent, narrow, errors))
    assert (ill.status, ill.since) == (HealthStatus.UNHEALTHY, LATER)
    first, second = ill.message.split("; gpu-vfio-3 ")
    assert first.startswith("gpu-vfio-3 answers no access over PCI any more while it is on vfio: ")
    assert second.startswith("has had fatal errors of PCIe while it was on vfio: restart its ")
    assert "Xid" not in ill.message
