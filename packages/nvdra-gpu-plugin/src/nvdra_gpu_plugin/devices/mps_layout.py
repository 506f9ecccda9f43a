# SPDX-License-Identifier: Apache-2.0
"""Where the files of an MPS control daemon are, on the node and in its container. Pure.

The daemon's directory outlives the daemon: it is removed when its Deployment is gone. Everything in
it but `pipe` and `shm`, which clients get, is between the plugin and the daemon's command.
Source: docs/reference/gpu-prepare.md, "MPS".
"""

from pathlib import PurePosixPath
from typing import Final

FOLDER: Final = "mps"
"""Below the plugin's directory: one directory for each daemon, named by its ID."""

PIPE: Final = "pipe"
"""A small tmpfs, which clients get read-only."""
SHM: Final = "shm"
"""A tmpfs. It is gone after a reboot, and the daemon does not start before the plugin has mounted
it again, which is after it has mounted `PIPE`."""
LOG: Final = "log"
LOCK: Final = "lock"
"""Locked as long as the daemon, or its server, runs."""
STOP: Final = "stop"
"""Tombstone: while it exists, no daemon starts here, and one that runs ends."""
RUN: Final = "run"
"""Which run of the daemon may run: one whose command names another one never starts."""
READY: Final = "ready"
"""What the daemon answered about its settings when they had been made."""
WAITING: Final = "waiting"
"""Exists while processes of a user wait for those of another one: the IDs of both users."""
STEP: Final = "step.json"
"""The step of the claim's record, for a record that is lost."""

CLIENT_PIPE: Final = "/tmp/nvidia-mps"  # noqa: S108 - the path that CUDA knows
CLIENT_SHM: Final = "/dev/shm"  # noqa: S108 - the path that CUDA knows

DRIVER_ROOT: Final = PurePosixPath("/driver-root")
"""In the daemon's container, as the following ones."""
DIRECTORY: Final = PurePosixPath("/mps")
DAEMON_PIPE: Final = "run/nvidia-mps"
"""As the log, below the root of the driver's programs: the driver root if it has a shell, else that
of the container, because nothing can be created in a read-only directory of the node.

Not below /tmp: the node may tidy its own, and with the mount point the mount would go. And
NVIDIA's container toolkit gives /tmp/nvidia-mps of the node to every container."""
DAEMON_LOG: Final = "var/log/nvidia-mps"
POD_READY: Final = PurePosixPath("/run/nvidia-mps-ready")
"""Says what `READY` does, of this container's daemon alone: while one pod replaces another, `READY`
may still be the former one's."""
