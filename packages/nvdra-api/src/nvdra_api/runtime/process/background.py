"""Tasks that work while a block runs and end with it; what one of them raises ends the block."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def tasks(**work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run each coroutine in a task of its name until the block is left.

    `async with background.tasks(clique_label=publication.show_clique()):`; debuggers and dumps call
    that task "clique label".

    Raises:
        ExceptionGroup: What a task raised; the block and the other tasks are cancelled by it.
    """
    async with asyncio.TaskGroup() as group:
        started = [
            group.create_task(each, name=name.replace("_", " ")) for name, each in work.items()
        ]
        try:
            yield
        finally:
            for task in started:
                task.cancel()
