# SPDX-License-Identifier: Apache-2.0
"""What is said of a taint."""

import pytest
from nvdra_api.resource.slices import DeviceTaint
from nvdra_gpu_plugin.devices.gpu_loss import GpuLoss
from nvdra_gpu_plugin.health import explanations, recovery_actions
from nvdra_gpu_plugin.health.gpu_health import LOST_KEY, XID_KEY
from nvdra_gpu_plugin.health.recovery_actions import NOT_OF_THE_GPU, RecoveryAction

XID_48 = DeviceTaint(key=XID_KEY, value="48", effect="NoSchedule")


def text(taint: DeviceTaint, action: int = 0) -> str:
    found = explanations.find(taint, action)
    assert found is not None
    return found.of(taint)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (1, "drain and reset it (recovery action: GPU reset)"),
        (2, "drain its node and reboot it (recovery action: node reboot)"),
        (4, "drain and reset it (recovery action: drain and reset)"),
        (6, "drain its node and reset the GPU's PCIe bus (recovery action: bus reset)"),
        (7, "drain its node and reboot the whole system (recovery action: system reboot)"),
        (8, "do what nvidia-smi -q shows as the GPU Recovery Action (recovery action: number 8)"),
    ],
)
def test_the_remedy_for_an_xid_is_what_nvml_asks_for(action: int, expected: str) -> None:
    assert text(XID_48, action).startswith("has reported XID 48: ")
    assert expected in text(XID_48, action)
    assert "once the driver asks for none" in text(XID_48, action)


def test_peer_to_peer_traffic_is_ended_and_nothing_reset_where_nvml_asks_for_that() -> None:
    assert "(peer to peer)" in text(XID_48, RecoveryAction.DRAIN_P2P)
    assert "reset" not in text(XID_48, RecoveryAction.DRAIN_P2P)
    assert "(recovery action: drain P2P)" in text(XID_48, RecoveryAction.DRAIN_P2P)


def test_each_action_of_the_gpu_has_a_remedy_of_its_own() -> None:
    actions = {*RecoveryAction} - {*NOT_OF_THE_GPU}
    remedies = {recovery_actions.remedy(each) for each in actions}
    assert len(remedies) == len(actions)
    assert recovery_actions.remedy(99) not in remedies


def test_without_an_action_both_remedies_are_named() -> None:
    assert "or drain its node and reboot it where nvidia-smi -q shows that" in text(XID_48)


def test_each_loss_is_explained_by_itself() -> None:
    lost = [DeviceTaint(key=LOST_KEY, value=each, effect="NoSchedule") for each in GpuLoss]
    assert len({text(taint) for taint in lost}) == len(lost)
    assert text(lost[0], action=1).startswith("has fallen off the bus")
