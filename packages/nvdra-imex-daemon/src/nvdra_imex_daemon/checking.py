"""`nvdra-imex-daemon check`: is the IMEX of this container READY? For exec probes.

Source: spec/compute-domain.md §8.2.
"""

import asyncio
import sys

from nvdra_api.types.errors import DriverError

from nvdra_imex_daemon import ctl
from nvdra_imex_daemon.settings import Settings


def main(settings: Settings) -> int:
    """Ask once; the exit code: 0 when it is READY or there is none to ask, else 1."""
    if not settings.cliqueid:
        sys.stdout.write("check succeeded (noop, clique ID is empty)\n")
        return 0
    try:
        lack = asyncio.run(ctl.lack(settings.config_path))
    except DriverError as error:
        lack = str(error)
    if lack:
        sys.stderr.write(f"Error: not ready: {lack}\n")
        return 1
    return 0
