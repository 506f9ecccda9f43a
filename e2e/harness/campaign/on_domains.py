"""A campaign against the controller of ComputeDomains, on API servers of its own."""

from collections.abc import Sequence

from campaign import cd_strike, run
from campaign.cd_lane import Lane
from campaign.cd_operations import Operation
from campaign.outcomes import Campaign


async def campaign(lanes: Sequence[Lane], operation: Operation) -> Campaign:
    """Record the operation, and strike the controller at each of its writes."""
    kind = "told to end" if lanes[0].is_shared else "killed"
    return await run.campaign(
        f"{operation.name}, {kind}",
        lanes,
        lambda lane: cd_strike.record(lane, operation),
        lambda lane, row: cd_strike.strike(lane, operation, row),
    )
