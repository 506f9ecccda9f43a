"""Tasks run while a block runs, and their failure ends the block."""

import asyncio

import pytest
from nvdra_runtime.process import background_tasks


async def test_a_task_has_the_name_of_its_keyword_and_ends_with_the_block() -> None:
    names: list[str] = []
    started, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        names.append(task.get_name())
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with background_tasks.running(clique_label=work()):
        await started.wait()
    assert names == ["clique label"]
    assert ended.is_set()


async def test_the_failure_of_a_task_cancels_the_block() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ExceptionGroup) as caught:
        async with background_tasks.running(work=fail()):
            await asyncio.Event().wait()
    assert str(caught.value.exceptions[0]) == "broken"
