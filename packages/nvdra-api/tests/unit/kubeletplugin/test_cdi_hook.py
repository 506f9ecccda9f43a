# SPDX-License-Identifier: Apache-2.0
"""nvidia-cdi-hook on the host: somebody may remove it while pods need it."""

from pathlib import Path

import pytest
from nvdra_runtime.kubeletplugin import cdi_hook


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    program = tmp_path / "bundled"
    program.write_bytes(b"#!/bin/true\n")
    return program


def test_a_hook_that_was_removed_is_installed_again_with_its_directory(
    tmp_path: Path, bundled: Path
) -> None:
    directory = tmp_path / "plugin"
    directory.mkdir()
    installed = Path(cdi_hook.install("", directory, bundled))
    installed.unlink()
    directory.rmdir()
    cdi_hook.restore("", directory, bundled)
    assert installed.read_bytes() == bundled.read_bytes()
    assert installed.stat().st_mode & 0o777 == 0o755


def test_a_hook_of_the_host_is_left_to_the_host(tmp_path: Path, bundled: Path) -> None:
    assert cdi_hook.install("/usr/bin/theirs", tmp_path / "plugin", bundled) == "/usr/bin/theirs"
    cdi_hook.restore("/usr/bin/theirs", tmp_path / "plugin", bundled)
    assert not (tmp_path / "plugin").exists()


def test_an_image_without_a_hook_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--nvidia-cdi-hook-path"):
        cdi_hook.install("", tmp_path, tmp_path / "none")
