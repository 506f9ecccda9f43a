"""Tasks that run in the background of a block."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def running(**coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run each coroutine in a task while the block runs, and cancel the tasks at its end.

    The keyword is the name of the task: `running(clique_label=…)` starts the task "clique label".

    Raises:
        ExceptionGroup: A task raised an exception, which cancels the block and the other tasks.
    """
    async with asyncio.TaskGroup() as group:
        started = [
            group.create_task(each, name=name.replace("_", " "))
            for name, each in coroutines.items()
        ]
        try:
            yield
        finally:
            for task in started:
                task.cancel()
