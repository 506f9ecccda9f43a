# SPDX-License-Identifier: Apache-2.0
"""nvidia-cdi-hook in a directory in which nothing can be run. Needs root."""

import subprocess
from pathlib import Path

import pytest
from nvdra_runtime.kubeletplugin import cdi_hook


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def test_a_directory_that_is_mounted_noexec_is_told_until_it_is_not(tmp_path: Path) -> None:
    """CIS benchmarks ask for /var with noexec: every container with a device would fail."""
    bundled, directory = tmp_path / "bundled", tmp_path / "plugin"
    bundled.write_bytes(b"#!/bin/true\n")
    directory.mkdir()
    mount("-t", "tmpfs", "-o", "noexec", "none", str(directory))
    try:
        cdi_hook.install("", directory, bundled)
        with pytest.raises(PermissionError, match=f"{directory} is mounted noexec"):
            cdi_hook.restore("", directory, bundled)
        cdi_hook.restore("/opt/nvidia-cdi-hook", directory, bundled)
        mount("-o", "remount,exec", str(directory))
        cdi_hook.restore("", directory, bundled)
    finally:
        subprocess.run(["umount", directory], check=True)
