"""Ask the IMEX of this node how it is, as its own tool does it.

Source: spec/compute-domain.md §8.2; `asking` says what the answer means.
"""

import asyncio
from pathlib import Path
from typing import Final

from nvdra_imex_daemon import asking
from nvdra_imex_daemon.child import Child

PROGRAM: Final = "nvidia-imex-ctl"


async def lack(config: Path) -> str:
    """What is missing for READY; empty when nothing is. Answers within `asking.TIMEOUT_S`.

    Raises:
        PermanentError: `ImexBinaryMissing`.
        RetryableError: `DaemonNotReady`: the system has no room for a process now.
    """
    child = await Child.start((PROGRAM, "-c", str(config), "-q"))
    try:
        async with asyncio.timeout(asking.TIMEOUT_S):
            output = await child.output.read()
            code = await child.ended()
    except TimeoutError:
        return f"{PROGRAM} gave no answer within {asking.TIMEOUT_S:.0f} s"
    finally:
        await child.close()
    return asking.lack(code, output)
