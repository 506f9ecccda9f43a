"""Whatever a client leaves in the directory of its daemon, other daemons are collected."""

import asyncio
import os
import subprocess
from pathlib import Path
from uuid import uuid4

from nvdra_testing.node import mps_pods
from nvdra_testing.node.rig import Rig

DEPTH = 3000
"""More than Python's limit of recursion. A client needs a tenth of a second to make them."""


def make_deep(directory: Path) -> None:
    """Make directories in each other; their path would be too long for one call."""
    directory.mkdir(parents=True)
    descriptor = os.open(directory, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)


async def test_a_directory_that_is_nested_deeply_ends_nothing_and_delays_no_other(
    rig: Rig,
) -> None:
    folder = rig.plugin_dir / "mps"
    deep, other = folder / f"{uuid4()}-aaaaa", folder / f"{uuid4()}-bbbbb"
    first, last = sorted((deep, other))  # as they are collected
    make_deep(first / "pipe")
    (last / "pipe").mkdir(parents=True)
    try:
        await rig.start("--feature-gates=MPSSupport=true", *mps_pods.FLAGS)
        await rig.wait_until(lambda: not last.exists(), "the other daemon to be collected")
        claim = rig.create_claim("gpu-0")
        assert not (await rig.dra.prepare([claim]))[claim.uid].error
        assert rig.process.process.poll() is None
        assert rig.process.get("/healthz")[0] == 200
    finally:  # shutil may not be able to
        await asyncio.to_thread(subprocess.run, ["rm", "-rf", folder], check=True)
