"""Ask the IMEX of this node how it is, as its own tool does it.

Source: spec/compute-domain.md §8.2; `nvdra_api.protocol.imex` says what the answer means.
"""

import asyncio
from pathlib import Path

from nvdra_api.protocol import imex

from nvdra_imex_daemon.child import Child


async def lack(config: Path) -> str:
    """What is missing for READY; empty when nothing is. Answers within `imex.TIMEOUT_S`.

    Raises:
        PermanentError: `ImexBinaryMissing`.
        RetryableError: `DaemonNotReady`: the system has no room for a process now.
    """
    child = await Child.start((imex.CTL, "-c", str(config), "-q"))
    try:
        async with asyncio.timeout(imex.TIMEOUT_S):
            output = await child.output.read()
            code = await child.ended()
    except TimeoutError:
        return f"{imex.CTL} gave no answer within {imex.TIMEOUT_S:.0f} s"
    finally:
        await child.close()
    return imex.lack(code, output)
