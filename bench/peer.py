# SPDX-License-Identifier: Apache-2.0
"""Another driver's plugin from its image, beside which ours is measured: `--peer=ARCHIVE`.

The archive is one of OCI, as `skopeo copy docker://… oci-archive:FILE` writes it. The image's
program `gpu-kubelet-plugin` runs in the image's files and in a mount namespace of its own, on the
same simulated node and API server as ours. It is given the flags that both drivers know. What only
ours knows goes into the environment, so that ours can be its own peer.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = "gpu-kubelet-plugin"
OURS_ALONE = ("proc-root", "sys-root", "dev-root", "debug-endpoint")
"""Flags that other drivers lack."""

_SCRIPT = """#!/bin/bash
# Runs the program of an image on the machine's own devices and files of the test.
known=()
for each in "$@"; do
  case "$each" in
    {patterns}) name="${{each%%=*}}"; name="${{name#--}}"; name="${{name^^}}"
      export "${{name//-/_}}=${{each#*=}}" ;;
    *) known+=("$each") ;;
  esac
done
exec unshare --mount --propagation private bash -euc '
  root="$1"; shift
  for each in /dev /proc /sys {directory}; do
    mkdir -p "$root$each"; mount --rbind "$each" "$root$each"
  done
  exec chroot "$root" {program} "$@"
' bash {root} "${{known[@]}}"
"""


@contextmanager
def program(archive: Path, directory: Path) -> Iterator[Path]:
    """A program that runs the plugin of an image.

    Args:
        archive: The OCI archive of the image.
        directory: The benchmark's, with the files of all nodes; the image sees it, too.

    Raises:
        CalledProcessError: buildah cannot read the archive; its output says why.
    """
    store = directory / "peer"
    where = [f"--root={store / 'root'}", f"--runroot={store / 'run'}", "--storage-driver=vfs"]

    def buildah(*arguments: str) -> str:
        argv = ["buildah", *where, *arguments]
        return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    container = buildah("from", f"oci-archive:{archive.absolute()}")
    try:
        script = store / "run-peer"
        script.write_text(
            _SCRIPT.format(
                patterns="|".join(f"--{name}=*" for name in OURS_ALONE),
                directory=directory,
                program=PROGRAM,
                root=buildah("mount", container),
            )
        )
        script.chmod(0o755)
        yield script
    finally:
        buildah("rm", container)
