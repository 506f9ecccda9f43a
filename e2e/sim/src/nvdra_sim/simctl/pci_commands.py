# SPDX-License-Identifier: Apache-2.0
"""The commands of `nvdra-simctl` for the PCI bus: what has which function, and what goes wrong."""

from __future__ import annotations

import argparse
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nvdra_sim import incidents
from nvdra_sim.pci import files
from nvdra_sim.pci.bus import Faults
from nvdra_sim.simctl import arguments, report
from nvdra_sim.state_file import clients
from nvdra_sim.state_file.state import State, StateError


def add_to(commands: Any) -> None:
    """Adds the commands to the parser."""
    pci = commands.add_parser("pci", help="functions of the PCI bus, and their drivers")
    arguments.set_help(pci, "Shows and disturbs the PCI bus, which nvdra-sim-sysfs serves.")
    actions = pci.add_subparsers(required=True, metavar="ACTION")
    listing = arguments.add_command(
        actions, "list", _list, "list the functions", "Lists all functions with their drivers."
    )
    arguments.add_state(listing)
    _add_fault(actions)
    _add_error(actions)


@contextmanager
def files_follow(state: State) -> Iterator[None]:
    """Makes the files of an installed node follow a change, unless a server does so itself."""
    if clients.has_sysfs_server(state):
        yield
        return
    before = files.of_state(state)
    yield
    files.follow(state, before, files.of_state(state))


def write_control(state: State, control: str, text: str) -> None:
    """Writes to a control of the served sysfs, and waits as long as the kernel does.

    Raises:
        StateError: The write failed, as it does for anyone, or the mount cannot be seen from here.
    """
    if state.sys_mount is None:
        raise StateError("the server of sysfs is just starting or ending")
    try:
        (state.sys_mount / control).write_text(text, encoding="ascii")
    except OSError as error:
        raise StateError(f"{control}: {error.strerror}") from error


def _list(given: argparse.Namespace) -> object:
    return report.pci_functions(arguments.open_state(given))


def _fault(given: argparse.Namespace) -> object:
    node = arguments.open_state(given)
    faults = Faults(
        driver=given.driver,
        bind_errno=given.bind_error,
        bind_is_lost=given.bind_lost,
        bind_ms=given.bind_ms,
        unbind_ms=given.unbind_ms,
        config_reads_ff=given.config_ff,
        link_width=given.link_width,
    )
    with files_follow(node):
        incidents.set_pci_faults(node, given.address, faults)
    return _report(node, given.address)


def _error(given: argparse.Namespace) -> object:
    node = arguments.open_state(given)
    with files_follow(node):
        incidents.count_pci_errors(node, given.address, **{given.kind: given.count})
    return _report(node, given.address)


def _report(node: State, address: str) -> object:
    return next(each for each in report.pci_functions(node) if each["address"] == address)


def _add_error(actions: Any) -> None:
    error = arguments.add_command(
        actions, "error", _error, "a function reports errors of PCIe",
        "Lets the kernel count errors of one function in aer_dev_fatal or aer_dev_nonfatal.",
        "  nvdra-simctl pci error 0000:3b:00.0 fatal\n"
        "  nvdra-simctl pci error 0000:3b:00.0 nonfatal --count 3",
    )  # fmt: skip
    arguments.add_state(error)
    error.add_argument("address", metavar="ADDRESS", help="a PCI address like 0000:3b:00.0")
    error.add_argument("kind", choices=("fatal", "nonfatal"), help="which counter")
    error.add_argument(
        "--count", type=arguments.count, default=1, metavar="N", help="how many; default: 1"
    )


def _add_fault(actions: Any) -> None:
    fault = arguments.add_command(
        actions, "fault", _fault, "binds and unbinds fail or take long",
        "Decides what goes wrong with one function. What is not given goes well again.",
        "  nvdra-simctl pci fault 0000:3b:00.0 --driver vfio-pci --bind-error EIO\n"
        "  nvdra-simctl pci fault 0000:3b:00.0                    # nothing goes wrong",
    )  # fmt: skip
    arguments.add_state(fault)
    fault.add_argument("address", metavar="ADDRESS", help="a PCI address like 0000:3b:00.0")
    fault.add_argument("--driver", default="", help="only binds to this driver; default: all")
    fault.add_argument(
        "--bind-error", type=_number, default=0, metavar="NAME", help="a bind fails: EIO, …"
    )
    fault.add_argument(
        "--bind-lost",
        action="store_true",
        help="a bind says that it worked, and there is no driver",
    )
    for name in ("bind", "unbind"):
        fault.add_argument(
            f"--{name}-ms", type=arguments.count, default=0, metavar="MS", help=f"{name} takes long"
        )
    fault.add_argument(
        "--config-ff", action="store_true", help="the configuration space reads as all ones"
    )
    fault.add_argument(
        "--link-width", type=arguments.count, default=0, metavar="LANES",
        help="the link has come up with fewer lanes",
    )  # fmt: skip


def _number(name: str) -> int:
    numbers = {word: number for number, word in errno.errorcode.items()}
    if name not in numbers:
        raise argparse.ArgumentTypeError(f"{name!r} is not an error of the kernel, like EIO")
    return numbers[name]
