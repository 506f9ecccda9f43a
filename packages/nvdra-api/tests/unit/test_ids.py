# SPDX-License-Identifier: Apache-2.0
"""UIDs."""

import pytest
from nvdra_api.ids import is_uid

UID = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize("text", [UID, "0a0a0a0a-0000-4000-8000-00000000000a"])
def test_a_uid_is_recognized(text: str) -> None:
    assert is_uid(text)


@pytest.mark.parametrize(
    "text", ["", ".", "..", "../x", "x", f"{UID}/", f"/{UID}", f"{UID}\n", UID.upper() + "A"]
)
def test_no_other_text_is_a_uid(text: str) -> None:
    assert not is_uid(text)
