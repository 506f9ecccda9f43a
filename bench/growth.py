"""What the plugin weighs after many prepares."""

from typing import Any

from bench import rounds
from bench.figures import Samples
from bench.rounds import WIDTH
from bench.stations import Station

FEW, MANY = 1_000, 10_000


async def measure(station: Station, done: int, many: int = MANY) -> dict[str, Any]:
    """Resident set in MiB after 1,000 prepares and after `many`; `done` have been made before.

    The same eight claims are prepared and taken back again and again: every prepare asks the API
    server, proves and records as the first one did.
    """
    held = await station.claims.new()
    weights: dict[str, float] = {}
    for limit in (FEW, many):
        while done < limit:
            await rounds.again(station.caller, held, Samples())
            done += WIDTH
        weights[str(limit)] = round(station.process.resident_mib(), 1)
    return weights
