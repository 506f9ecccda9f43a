# SPDX-License-Identifier: Apache-2.0
"""Asks the IMEX of this node for its status, with NVIDIA's own nvidia-imex-ctl.

`nvdra_runtime.computedomain.imex_ctl` and `imex_links` interpret the answers.
Source: docs/reference/imex.md, "The check command", "What is known of nvidia-imex".
"""

import asyncio
from pathlib import Path
from typing import Final

from nvdra_runtime.computedomain import imex_ctl, imex_links

from nvdra_imex_daemon.process.child import ChildProcess

_CHUNK: Final = 65536
_MAX_OUTPUT: Final = 16 * 1024 * 1024
"""The answer about 256 nodes has 5 MB; what is longer is cut off, and so not readable."""


async def query_status(config: Path) -> str:
    """Why IMEX is not READY; empty if it is. Takes at most `imex_ctl.QUERY_TIMEOUT_S`.

    Raises:
        PermanentError: `ImexBinaryMissing`: nvidia-imex-ctl cannot be run.
        RetryableError: `DaemonNotReady`: The system cannot start another process now.
    """
    child = await ChildProcess.start((imex_ctl.CTL_PROGRAM, "-c", str(config), "-q"))
    try:
        async with asyncio.timeout(imex_ctl.QUERY_TIMEOUT_S):
            output = await child.output.read()
            code = await child.wait_ended()
    except TimeoutError:
        return f"{imex_ctl.CTL_PROGRAM} gave no answer within {imex_ctl.QUERY_TIMEOUT_S:.0f} s"
    finally:
        await child.close()
    return imex_ctl.not_ready_reason(code, output)


async def query_nodes(config: Path) -> bytes | None:
    """The nodes and connections of the domain as JSON, with whatever else is printed.

    Returns None if there is no answer within `imex_links.NODES_TIMEOUT_S`; the query is killed.

    Raises:
        PermanentError: `ImexBinaryMissing`: nvidia-imex-ctl cannot be run.
        RetryableError: `DaemonNotReady`: The system cannot start another process now.
    """
    child = await ChildProcess.start((imex_ctl.CTL_PROGRAM, "-c", str(config), "-N", "-j"))
    try:
        async with asyncio.timeout(imex_links.NODES_TIMEOUT_S):
            output = bytearray()
            while chunk := await child.output.read(_CHUNK):
                output += chunk[: _MAX_OUTPUT - len(output)]
            await child.wait_ended()
    except TimeoutError:
        return None
    finally:
        await child.close()
    return bytes(output)
