# SPDX-License-Identifier: Apache-2.0
"""`nvdra-sim-sysfs`: serve the sysfs of a simulated node, or end a server that hangs.

It prints one line once the mount answers, and runs until SIGTERM or SIGINT, or until it is
unmounted. Exit codes: 0 it has ended in order, 1 error, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from nvdra_sim.pci.machine import StateMachine
from nvdra_sim.simctl import arguments
from nvdra_sim.state_file import clients
from nvdra_sim.state_file.state import State, StateError
from nvdra_sim.sysfs_server import connection
from nvdra_sim.sysfs_server.server import SysfsServer

DESCRIPTION = """\
Mounts the sysfs of an installed node, with control files that behave as the kernel's: writes to
bind, unbind, driver_override, drivers_probe, new_id, remove_id, reset, remove and rescan change
drivers, nodes and what NVML sees, fail with the kernel's errors, and wait while the device is used.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the server and returns the exit code."""
    given = _parser().parse_args(argv)
    try:
        if given.abort:
            return 0 if connection.abort(given.mount) else 1
        serve(arguments.open_state(given), given.mount, keeps_mount=given.keep_mount)
    except (StateError, OSError) as error:
        print(f"nvdra-sim-sysfs: {error}", file=sys.stderr)
        return 1
    return 0


def serve(state: State, target: Path, *, keeps_mount: bool = False) -> None:
    """Serves the node at `target` until a signal, or until it is unmounted.

    What a former server has left mounted there is mounted over. Copies of that mount in other mount
    namespaces, as containers have them, then show the new server as well, if mounts propagate.

    Args:
        state: The node.
        target: A directory, which is made if it is missing.
        keeps_mount: Whether the mount stays at the end, without an answer, for the next server.

    Raises:
        StateError: The node has no files, or another server.
        OSError: The file system cannot be mounted.
    """
    plain = state.sys_root
    if plain is None or not plain.is_dir():
        raise StateError("the node has no sysfs; create one with: nvdra-simctl install")
    if target.resolve() == plain.resolve():
        raise StateError(f"{target} has the plain files: the server cannot read them below itself")
    try:
        lock = clients.lock_for_server(state)
    except BlockingIOError:
        raise StateError(f"another server answers at {state.sys_mount}") from None
    stop = _stop_on_signals()
    if connection.number(target) is None:  # else the directory is there, and nothing answers in it
        target.mkdir(parents=True, exist_ok=True)
    target = target.resolve()
    device = connection.mount(target)
    server = SysfsServer(device, plain.resolve(), StateMachine(state))
    try:
        state.move_sys_mount(target)
        print(f"mounted {target} connection={connection.number(target)}", flush=True)
        server.run(stop)
    finally:
        server.answer_all()
        state.move_sys_mount(None)
        if not keeps_mount and connection.number(target) is not None:
            connection.unmount(target)
        os.close(device)
        os.close(lock)


def _stop_on_signals() -> int:
    """A descriptor that can be read once the process was asked to end."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return reader


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nvdra-sim-sysfs", description=DESCRIPTION)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("mount", type=Path, metavar="DIR", help="where to mount")
    parser.add_argument(
        "--abort", action="store_true",
        help="end the server that is mounted there, whatever it does; writers get an error",
    )  # fmt: skip
    parser.add_argument(
        "--keep-mount", action="store_true",
        help="leave the mount at the end, for a next server that is seen wherever this one was",
    )  # fmt: skip
    arguments.add_state(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
