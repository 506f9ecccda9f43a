# SPDX-License-Identifier: Apache-2.0
"""What the kubelet is told of a device that is not well fits into its limit."""

import pytest
from nvdra_runtime.kubeletplugin import health_service


@pytest.mark.parametrize("text", ["", "XID 48", "x" * 1024, "é" * 512])
def test_a_message_that_fits_is_sent_as_it_is(text: str) -> None:
    assert health_service.shortened(text) == text


@pytest.mark.protocol("H11")
@pytest.mark.parametrize("text", ["x" * 1025, "é" * 513, "x" + "é" * 512, "€" * 400])
def test_a_longer_message_is_cut_between_two_characters(text: str) -> None:
    cut = health_service.shortened(text)
    assert 1020 < len(cut.encode()) <= 1024
    assert text.startswith(cut.removesuffix("..."))
    assert cut.endswith("...")
