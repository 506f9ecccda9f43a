# SPDX-License-Identifier: Apache-2.0
import pytest
from nvdra_gpu_plugin.passthrough import holder_remedies

OTHERS = "end these processes or delete their pods; nothing is unbound before"


def test_programs_without_an_advice_of_their_own_are_to_be_ended() -> None:
    assert holder_remedies.remedy(["python3", "dcgm"]) == OTHERS
    assert holder_remedies.remedy([]) == OTHERS


@pytest.mark.parametrize("command", ["nv-hostengine", "dcgm-exporter"])
def test_a_monitor_is_to_be_one_that_may_run_there(command: str) -> None:
    remedy = holder_remedies.remedy([command])
    assert "DCGM 4.5 or later" in remedy
    assert "stop" in remedy
    assert OTHERS not in remedy


def test_nvidia_persistenced_is_to_be_asked_for_the_gpu_or_stopped() -> None:
    remedy = holder_remedies.remedy(["nvidia-persistenced"[:15]])
    assert "nvidia-smi -pm 0" in remedy
    assert OTHERS not in remedy


def test_an_advice_is_given_once_and_the_general_one_last() -> None:
    commands = ["bash", "nv-hostengine", "python3", "dcgm-exporter"]
    first, _, last = holder_remedies.remedy(commands).partition("; ")
    assert "DCGM" in first
    assert last == OTHERS
