# SPDX-License-Identifier: Apache-2.0
"""Run tests on a real kernel in QEMU; by default, those of e2e/sim/tests/kernel.

    python -m nvdra_sim.testing.real_kernel
    python -m nvdra_sim.testing.real_kernel e2e/sim/tests/kernel/test_table_a1.py -- -k override
    python -m nvdra_sim.testing.real_kernel --command "ls -l /sys/bus/pci/devices"

Tests find the guest's functions by the option --back-end of e2e/sim/tests/kernel/conftest.py. The
first run fetches Debian packages into the cache; --renew fetches the newest ones again.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nvdra_sim.testing.passthrough.board import BackEnd
from nvdra_sim.testing.passthrough.processes import REAL_HOLDER
from nvdra_sim.testing.real_kernel import debian, guest, initramfs, machine, stand_in
from nvdra_sim.testing.real_kernel.console import Phase
from nvdra_sim.testing.real_kernel.debian import Tree
from nvdra_sim.testing.real_kernel.errors import RealKernelError
from nvdra_sim.testing.real_kernel.guest import Run

REPOSITORY = Path(__file__).resolve().parents[6]
TESTS = REPOSITORY / "e2e/sim/tests/kernel"
CONSOLE = REPOSITORY / "out/real-kernel/console.log"
LIMIT_S = 900.0
"""After that time, a guest hangs, whatever else the machine does."""
BAR_S = 180.0
"""How long processors may work for a run: it takes no longer than that on a machine that does
nothing else."""
STARTS = 2
"""A start that ends before the first test is repeated once: about one in five did in the first
trials, before `no_timer_check`."""

GUEST_FILES = "/run/nvdra"
KMOD_COMMANDS = ("modprobe", "rmmod")
FOR_TESTS = {
    # Only what the tests need: each import takes twenty times as long as usual.
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0 if all tests passed."""
    parser = argparse.ArgumentParser(
        prog="python -m nvdra_sim.testing.real_kernel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tests", nargs="*", help="files or directories, then -- and pytest options")
    parser.add_argument("--command", help="a command of the shell, in place of tests")
    parser.add_argument("--renew", action="store_true", help="fetch the newest packages again")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="for each start")
    given = parser.parse_args(arguments)
    try:
        tree = debian.ensure(given.renew)
        command = given.command or _pytest(given.tests)
        return _run(tree, command, given.limit_s)
    except RealKernelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(tree: Tree, command: str, limit_s: float) -> int:
    """Run a command in a guest, and return its exit status."""
    CONSOLE.parent.mkdir(parents=True, exist_ok=True)
    CONSOLE.write_text("")
    with tempfile.TemporaryDirectory(prefix="real-kernel-") as folder:
        archive = Path(folder) / "initramfs"
        initramfs.write(archive, tree, _settings(tree, command), _files(tree))
        argv = machine.command(tree, archive, CONSOLE)
        environment = {"PATH": os.defpath, "QEMU_MODULE_DIR": str(tree.qemu_modules)}
        for start in range(1, STARTS + 1):
            print(f"▸ Linux {tree.release} in QEMU, start {start}", flush=True)
            done = guest.run(argv, environment, limit_s)
            if done.progress.phase is not Phase.STARTING or done.qemu_status:
                break
            print(f"  it ended after {done.seconds:.0f} s, before the first test", flush=True)
    facts = f"Linux {tree.release}, {done.seconds:.0f} s, {done.processor_s:.0f} s of processors"
    if done.progress.status is None:
        raise RealKernelError(f"{_why(done)} ({facts}). {CONSOLE} ends with:\n{_console_tail()}")
    is_slow = done.processor_s > BAR_S
    mark = "✗" if done.progress.status or is_slow else "✓"
    print(f"{mark} real kernel: {facts} (at most {BAR_S:.0f})", flush=True)
    return done.progress.status or int(is_slow)


def _why(done: Run) -> str:
    """What kept a guest from its end, and what may help."""
    if done.qemu_status:
        return f"QEMU ended with {done.qemu_status}; after an update of this machine, try --renew"
    if done.is_late:
        return "the guest did not end in time; on a busy machine, try --limit-s=3600"
    return "the guest has ended before its command"


def _console_tail() -> str:
    return "\n".join(CONSOLE.read_text(errors="replace").splitlines()[-20:])


def _settings(tree: Tree, command: str) -> dict[str, str]:
    return {
        "DRIVERS": " ".join((*machine.NATIVE_DRIVERS, "vfio-pci")),
        "TREE_MODULES": str(tree.modules),
        "COMMAND": f"cd {shlex.quote(str(REPOSITORY))} && {command}",
    }


def _files(tree: Tree) -> dict[str, bytes]:
    """The programs and data in `GUEST_FILES`."""
    programs = {
        name: f'#!/bin/sh\nexec {shlex.join(tree.command("bin/kmod", name))} "$@"\n'.encode()
        for name in KMOD_COMMANDS
    }
    back_end = BackEnd(
        sys_root=Path("/sys"),
        dev_root=Path("/dev"),
        modules_root=Path("/lib/modules"),
        board=machine.BOARD,
        holder=REAL_HOLDER,
        modprobe=[f"{GUEST_FILES}/modprobe"],
        rmmod=[f"{GUEST_FILES}/rmmod"],
        kernel_log=Path("/dev/kmsg"),
    )
    module = stand_in.build(tree).read_bytes()
    text = back_end.to_json().encode()
    return {**programs, stand_in.NAME: module, "back-end.json": text}


def _pytest(tests: Sequence[str]) -> str:
    """The command that runs tests, without the settings and plugins of the repository."""
    variables = [f"{name}={value}" for name, value in FOR_TESTS.items()]
    return shlex.join(
        [
            *("env", *variables, sys.executable, "-m", "pytest", "-v", "--color=no"),
            *("-c", "/dev/null", f"--rootdir={REPOSITORY}", f"--confcutdir={TESTS}"),
            *("-o", f"pythonpath={REPOSITORY}", "-W", "error", "--import-mode=importlib"),
            *("-p", "no:cacheprovider", "-p", "pytest_timeout", "--timeout=300", "--durations=5"),
            f"--back-end={GUEST_FILES}/back-end.json",
            *(tests or [str(TESTS)]),
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
