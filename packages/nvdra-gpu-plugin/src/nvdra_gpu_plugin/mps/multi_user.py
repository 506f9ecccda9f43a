# SPDX-License-Identifier: Apache-2.0
"""Whether NVIDIA's MPS control program can serve several users, found by trying it.

535.261.03 and 550.163.01 cannot, 555.58.02 knows the option by its long name alone, and drivers of
CUDA 13 by its short one. Which driver was the first is published nowhere, so no version is
compared. Source: docs/decisions/gpu-plugin.md, "How is a driver found that has one user only?".
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from nvdra_runtime.node.host import Host

PROGRAM: Final = "nvidia-cuda-mps-control"
OPTIONS: Final = ("-M", "-multiuser-server")
_NOWHERE: Final = "/proc/self/none"
"""No directory can be made there, so that a daemon ends before it listens."""
_DIRECTORIES: Final = {"CUDA_MPS_PIPE_DIRECTORY": _NOWHERE, "CUDA_MPS_LOG_DIRECTORY": _NOWHERE}
_TIMEOUT_S: Final = 5.0


def option(program: Sequence[str], environment: Mapping[str, str]) -> str:
    """The option by which a daemon serves several users; empty if the program has none.

    Where that cannot be tried, it is that of newer drivers: the daemon's end says what is wrong.

    Args:
        program: What runs the program, without options.
        environment: Its variables. The directories of a daemon are replaced.
    """
    variables = {**environment, **_DIRECTORIES}
    alone = _answer((*program, "-f"), variables)
    if not alone or alone == _answer(program, variables):  # as with an unknown option
        return OPTIONS[0]
    return next(
        (each for each in OPTIONS if _answer((*program, "-f", each), variables) == alone), ""
    )


def is_possible(host: Host) -> bool:
    """Whether the node's driver can serve several users, or that cannot be tried."""
    try:
        program = host.find_program(PROGRAM)
    except OSError:
        return True
    return bool(option((str(program),), {"PATH": os.defpath}))


def _answer(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """The last line that a program says; empty if it does not run to its end."""
    try:
        done = subprocess.run(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
