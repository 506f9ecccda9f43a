"""Asks the IMEX of this node for its status, with NVIDIA's own nvidia-imex-ctl.

`nvdra_runtime.computedomain.imex_ctl` interprets the answer.
Source: docs/reference/imex.md, "The check command".
"""

import asyncio
from pathlib import Path

from nvdra_runtime.computedomain import imex_ctl

from nvdra_imex_daemon.process.child import ChildProcess


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
