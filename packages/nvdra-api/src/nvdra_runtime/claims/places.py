# SPDX-License-Identifier: Apache-2.0
"""Calls for all changes of a claim: those of a place in their order, places side by side."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from nvdra_api.errors import DriverError

from nvdra_runtime.claims.changes import Change, is_of_hardware

ResultT = TypeVar("ResultT")


async def on_each(
    changes: Sequence[Change], call: Callable[[Change], Awaitable[ResultT]]
) -> list[ResultT]:
    """Call it for all changes.

    All that can be called is: the first failure of a place ends only what follows in that place.

    Returns:
        The results in the order of the changes.

    Raises:
        DriverError: The first one that is not of the hardware, or the first one.
    """
    places: dict[str, list[int]] = {}
    for number, change in enumerate(changes):
        places.setdefault(change.place, []).append(number)

    async def call_all(numbers: Sequence[int]) -> Mapping[int, ResultT] | DriverError:
        try:
            return {number: await call(changes[number]) for number in numbers}
        except DriverError as error:
            return error  # what is under way in other places is not cancelled

    if len(places) == 1:
        (numbers,) = places.values()
        results = [await call_all(numbers)]
    else:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call_all(numbers)) for numbers in places.values()]
        results = [task.result() for task in tasks]
    errors = [result for result in results if isinstance(result, DriverError)]
    if errors:
        raise min(errors, key=is_of_hardware)
    done = {
        n: made for result in results if isinstance(result, Mapping) for n, made in result.items()
    }
    return [done[number] for number in range(len(changes))]
