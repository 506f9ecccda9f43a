# SPDX-License-Identifier: Apache-2.0
"""The taints of vfio devices."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import VfioUUID
from nvdra_api.resource.slices import DeviceTaint
from nvdra_gpu_plugin.publishing import vfio_taints

LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)")
"""Source: `IsValidLabelValue` in k8s.io/apimachinery/pkg/util/validation."""


@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("nv-hostengine", "nv-hostengine"),
        ("python3 -m train", "python3--m-train"),
        ("(sd-pam)", "sd-pam"),
        ("...", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_value_is_the_command_that_holds_the_gpu(command: str, value: str) -> None:
    assert vfio_taints.busy(command) == DeviceTaint(
        key="gpu.nvidia.com/passthrough-busy", value=value, effect="NoSchedule"
    )


@given(st.text(max_size=200))
def test_any_command_gives_a_value_that_the_api_server_accepts(command: str) -> None:
    assert LABEL_VALUE.fullmatch(vfio_taints.busy(command).value)


def test_a_device_has_the_taints_of_both_reasons_in_the_order_of_their_keys() -> None:
    first, second, third = (VfioUUID(str(number)) for number in range(3))
    busy = vfio_taints.busy("dcgm")
    link, lost = (
        DeviceTaint(key=f"gpu.nvidia.com/{name}", effect="NoSchedule")
        for name in ("pcie-link", "gpu-lost")
    )
    joined = vfio_taints.joined({first: busy, second: busy}, {second: [lost, link], third: [lost]})
    assert joined == {first: (busy,), second: (lost, busy, link), third: (lost,)}
