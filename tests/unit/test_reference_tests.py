# SPDX-License-Identifier: Apache-2.0
"""The page on the reference's tests names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/reference-tests.md"
NAMED = re.compile(r"`(?P<directory>\w+)/(?P<file>test_\w+\.py)::(?P<test>test_\w+)`")
DIRECTORIES = {
    "gpus": ROOT / "e2e/tests/gpus",
    "sharing": ROOT / "e2e/tests/sharing",
    "kubelet": ROOT / "e2e/tests/kubelet",
    "members": ROOT / "e2e/tests/members",
    "gpu": ROOT / "packages/nvdra-gpu-plugin/tests/component",
    "passthrough": ROOT / "packages/nvdra-gpu-plugin/tests/unit/passthrough",
    "cdi": ROOT / "packages/nvdra-gpu-plugin/tests/unit/cdi",
}
TESTS = [found.groupdict() for found in NAMED.finditer(PAGE.read_text())]


def test_the_page_names_tests() -> None:
    assert len(TESTS) > 30


@pytest.mark.parametrize("named", TESTS, ids=lambda named: str(named["test"]))
def test_a_named_test_exists(named: dict[str, str]) -> None:
    text = (DIRECTORIES[named["directory"]] / named["file"]).read_text()
    assert f"def {named['test']}(" in text
