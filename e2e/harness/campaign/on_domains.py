"""A campaign against the controller of ComputeDomains, on API servers of its own."""

from collections.abc import Sequence

from campaign import cd_strike, run
from campaign.cd_lane import Lane
from campaign.cd_operations import Operation
from campaign.cd_strike import Blow
from campaign.outcomes import Campaign


async def campaign(lanes: Sequence[Lane], operation: Operation, blow: Blow) -> Campaign:
    """Record the operation, and strike the controller at each of its writes."""
    return await run.campaign(
        f"{operation.name}, {blow.name}",
        lanes,
        lambda lane: cd_strike.record(lane, operation, blow),
        lambda lane, row: cd_strike.strike(lane, operation, row, blow),
    )
