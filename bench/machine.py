# SPDX-License-Identifier: Apache-2.0
"""Describes the machine and the versions that are measured."""

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

STACK = ("grpcio", "aiohttp", "kubernetes", "pydantic", "protobuf")


def facts(program: Path, etcd_flags: tuple[str, ...], directory: Path) -> dict[str, object]:
    """The description for the report.

    Args:
        program: The plugin's program.
        etcd_flags: etcd's flags, without those for its addresses and its data directory.
        directory: Directory of the state files; its file system is reported.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "filesystem": _filesystem(directory),
        "python": platform.python_version(),
        "plugin": _said([str(program), "--version"]),
        "commit": _said(["git", "-C", str(Path(__file__).parent), "describe", "--always"]),
        "stack": {name: metadata.version(name) for name in STACK},
        "etcd_flags": list(etcd_flags),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(directory: Path) -> str:
    return _said(["findmnt", "--noheadings", "--output=FSTYPE", "--target", str(directory)])


def _said(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
