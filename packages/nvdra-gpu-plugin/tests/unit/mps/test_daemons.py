# SPDX-License-Identifier: Apache-2.0
"""The failure of a claim whose daemon's files cannot be used."""

from pathlib import Path

import pytest
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_gpu_plugin.mps import daemons


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError(), "the disk does not respond"),  # as asyncio raises it, without a text
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_a_claim_is_told_why_the_files_of_its_daemon_cannot_be_used(
    error: OSError, text: str
) -> None:
    ref = ClaimRef("default", "train", ClaimUID("uid"))
    found = daemons.files_error(ref, error, Path("/plugins"))
    assert found.message.endswith(f"cannot be read or changed: {text}")
