# SPDX-License-Identifier: Apache-2.0
"""Deadlines of a kubelet's call, and the answers for its claims."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef

ANSWER_MARGIN_S = 2.0
"""How long before its deadline a call is answered (docs/reference/tracing.md, "Reason codes")."""

T = TypeVar("T")


class Deadlines(NamedTuple):
    """When things end, in monotonic seconds of the loop's clock.

    Attributes:
        work: When every wait inside an operation ends, with an error that names what it waited for.
        answer: When the kubelet is answered although the operation has not ended.
    """

    work: float
    answer: float


def deadlines(deadline: float) -> Deadlines:
    """Reserve two seconds for the answer; of a call with less than four, half of what is left."""
    remaining = max(0.0, deadline - asyncio.get_running_loop().time())
    margin = min(ANSWER_MARGIN_S, remaining / 2)
    return Deadlines(work=deadline - margin, answer=deadline - margin / 2)


async def gather(
    claims: Sequence[ClaimRef], answers: Sequence[Coroutine[Any, Any, T]]
) -> dict[ClaimUID, T]:
    """Wait for the answers of all claims, concurrently."""
    if len(claims) == 1:  # the usual call: it needs no task
        return {claims[0].uid: await answers[0]}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(answer) for answer in answers]
    return {ref.uid: task.result() for ref, task in zip(claims, tasks, strict=True)}
