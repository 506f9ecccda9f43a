# SPDX-License-Identifier: Apache-2.0
"""The command `nvdra-imex-daemon check`, for exec probes: is the IMEX of this container READY?

Source: docs/reference/imex.md, "The check command".
"""

import asyncio

from nvdra_api.errors import DriverError
from nvdra_runtime.process import output

from nvdra_imex_daemon.process import imex_query
from nvdra_imex_daemon.settings import Settings


def main(settings: Settings) -> int:
    """Ask once. Returns the exit code: 0 if IMEX is READY or not needed on this node, else 1."""
    if not settings.cliqueid:
        output.print_or_exit("check succeeded (noop, clique ID is empty)\n")
        return 0
    try:
        reason = asyncio.run(imex_query.query_status(settings.config_path))
    except DriverError as error:
        reason = str(error)
    if reason:
        output.print_error(f"Error: not ready: {reason}")
        return 1
    return 0
