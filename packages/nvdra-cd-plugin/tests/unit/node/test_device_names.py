# SPDX-License-Identifier: Apache-2.0
"""Names of the published devices."""

import pytest
from nvdra_cd_plugin.node import device_names


@pytest.mark.parametrize(
    ("device", "number"),
    [("channel-0", 0), ("channel-2047", 2047), ("channel-", None), ("channel-00", None),
     ("channel", None), ("daemon-0", None), ("channel--1", None), ("channel-٣", None)],
)  # fmt: skip
def test_a_device_name_has_a_number(device: str, number: int | None) -> None:
    assert device_names.device_number(device, device_names.CHANNEL) == number
