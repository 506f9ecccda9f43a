# SPDX-License-Identifier: Apache-2.0
"""What an administrator is told who wants to work on GPUs."""

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import DeviceName
from nvdra_gpu_plugin.nvml_release import gpu_use


def test_settings_that_would_be_lost_are_to_be_noted_and_set_again() -> None:
    """Persistence mode would keep them, and have the driver refuse the reset."""
    with pytest.raises(PermanentError) as refused:
        gpu_use.check_settings({DeviceName("gpu-5"): ["compute mode 3", "power limit 500 W"]})
    assert refused.value.reason is Reason.DEVICE_IN_USE
    told = refused.value.event_text
    assert "gpu-5: compute mode 3, power limit 500 W" in told
    assert "set them again afterwards" in told
    assert "-pm 1" not in told


def test_gpus_in_persistence_mode_are_to_leave_it_before_a_reset() -> None:
    told = gpu_use.persistence_advice([DeviceName("gpu-0"), DeviceName("gpu-3")])
    assert told.startswith("persistence mode has gpu-0, gpu-3 open: before a reset")
    assert "nvidia-smi -pm 0" in told
    assert gpu_use.persistence_advice([]) == ""
