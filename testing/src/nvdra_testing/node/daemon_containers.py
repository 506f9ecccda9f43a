# SPDX-License-Identifier: Apache-2.0
"""Starts a program as a container runtime starts the container of a daemon's pod.

The program is process 1 of its PID namespace: when it is killed, the kernel kills whatever else
runs in the container. It has the pod's hosts file and the domain's directory. This needs root.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOSTS_FILE = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"

IMEXD = "/run/imexd"
"""Where a daemon sees its domain's directory."""

# What a container runtime does before it starts the container's program.
_SCRIPT = f"""
hostname "$5"
mount --bind "$1" /etc/hosts
mount --bind "$2" /etc/nsswitch.conf
mount --bind "$3" /etc/resolv.conf
mount -t tmpfs tmpfs /run
mkdir {IMEXD}
mount --bind "$4" {IMEXD}
shift 5
exec "$@"
"""


@dataclass(frozen=True)
class DaemonContainer:
    """The container of a daemon's pod, which can be started again.

    Attributes:
        directory: The pod's own files: `hosts`, `out` (output of nvidia-imex), `log` (log of the
            daemon).
        imexd: The domain's directory on the node, which is mounted at `IMEXD`.
        argv: The daemon's program and flags.
        environ: The daemon's variables.
        hostname: The pod's name.
    """

    directory: Path
    imexd: Path
    argv: Sequence[str | Path]
    environ: Mapping[str, str]
    hostname: str

    def write_name_services(self, resolver: str) -> None:
        """Write the files for name look-ups, with this resolv.conf; empty for one without DNS."""
        (self.directory / "nsswitch.conf").write_text(f"hosts: files {'dns' * bool(resolver)}\n")
        (self.directory / "resolv.conf").write_text(resolver)

    def start(self, before: Sequence[str | Path] = ()) -> "subprocess.Popen[bytes]":
        """Start the container, and return the process that waits for its end.

        Each start makes the hosts file anew, as the kubelet does. The output is kept.

        Args:
            before: A program that replaces itself by the daemon.
        """
        (self.directory / "hosts").write_text(HOSTS_FILE)
        files = (self.directory / each for each in ("hosts", "nsswitch.conf", "resolv.conf"))
        argv: list[str | Path] = [
            *("unshare", "--mount", "--mount-proc", "--uts", "--pid", "--fork", "--kill-child"),
            *("sh", "-ec", _SCRIPT, "sh"),
            *files,
            self.imexd,
            self.hostname,
            *before,
            *self.argv,
        ]
        with (self.directory / "out").open("ab") as out, (self.directory / "log").open("ab") as log:
            return subprocess.Popen(argv, stdout=out, stderr=log, env=dict(self.environ))
