# SPDX-License-Identifier: Apache-2.0
"""The command `kill` of our images, which are built without tools.

`kubectl exec POD -- kill -s SIGUSR2 1` makes a program dump its stacks (`stack_dump`). The wheel
installs it as `nvdra-kill`, so that no other `kill` is hidden, and the images link it.
"""

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_USAGE: Final = """\
usage: {0} [-s SIGNAL | -SIGNAL] PID...
Sends a signal to processes. SIGNAL is a number or a name, with or without SIG; the default is TERM.
Example: {0} -s SIGUSR2 1   lets a program of nvdra write the stacks of its threads into its log
"""
_PID: Final = re.compile(r"-?[0-9]{1,9}")


def main(argv: Sequence[str] | None = None) -> None:
    """Send a signal to processes, as the command of POSIX does.

    Args:
        argv: Arguments without the command; the default is those of the process.

    Raises:
        SystemExit: 1 if a process cannot be signalled, 2 if the arguments are not valid, 0 after
            --help.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    usage = _USAGE.format("nvdra-kill" if Path(sys.argv[0]).name == "nvdra-kill" else "kill")
    if arguments in (["--help"], ["-h"]):
        sys.stdout.write(usage)
        raise SystemExit(0)
    name = "TERM"
    if arguments[:1] == ["-s"]:
        name = "".join(arguments[1:2])
        del arguments[:2]
    elif arguments and arguments[0].startswith("-") and arguments[0] != "--":
        name = arguments.pop(0)[1:]
    if arguments[:1] == ["--"]:
        del arguments[0]
    number = _signal_number(name)
    if number is None or not arguments or not all(map(_PID.fullmatch, arguments)):
        sys.stderr.write(usage)
        raise SystemExit(2)
    sent = [_send(int(pid), number) for pid in arguments]
    if not all(sent):
        raise SystemExit(1)


def _signal_number(name: str) -> int | None:
    if re.fullmatch(r"[0-9]{1,2}", name):
        return int(name)
    full = name if name.startswith("SIG") else f"SIG{name}"
    return signal.Signals.__members__.get(full)


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError as error:
        sys.stderr.write(f"kill: {pid}: {error.strerror}\n")
        return False
    return True
