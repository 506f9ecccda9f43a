# SPDX-License-Identifier: Apache-2.0
"""Tasks that outlive the function that starts them are started by `process.background_tasks` only.

A task of an `asyncio.TaskGroup` fails in the function with the group. That is right where the
function waits for it, and ends the process where the main function is inside the group.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUPERVISOR = "background_tasks.py"


def long_lived_groups(source: str) -> Iterator[str]:
    """The places where a group may have tasks that outlive the function, or is no block at all."""
    tree = ast.parse(source)
    blocks = [
        (node, item.context_expr)
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if _is_group(item.context_expr)
    ]
    in_blocks = {id(group) for _, group in blocks}
    for node in ast.walk(tree):
        if _is_group(node) and id(node) not in in_blocks:
            yield f"line {node.lineno}: no block"  # type: ignore[attr-defined]
    for block, _ in blocks:
        for node in ast.walk(block):
            if isinstance(node, ast.Yield) or _is_endless(node):
                yield f"line {block.lineno}: the block yields or loops for ever"


def _is_group(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("TaskGroup")


def _is_endless(node: ast.AST) -> bool:
    return isinstance(node, ast.While) and ast.unparse(node.test) == "True"


@pytest.mark.parametrize("package", sorted(each.name for each in (ROOT / "packages").iterdir()))
def test_no_group_has_tasks_that_outlive_their_function(package: str) -> None:
    files = (ROOT / "packages" / package / "src").rglob("*.py")
    found = {
        str(path.relative_to(ROOT)): places
        for path in files
        if path.name != SUPERVISOR and (places := list(long_lived_groups(path.read_text())))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "async with asyncio.TaskGroup() as group:\n    yield",
        "async with asyncio.TaskGroup() as group:\n    while True:\n        pass",
        "self._group = asyncio.TaskGroup()",
        "group = await stack.enter_async_context(TaskGroup())",
    ],
)
def test_a_group_that_lives_long_is_found(source: str) -> None:
    text = "async def f():\n    " + source.replace("\n", "\n    ")
    assert list(long_lived_groups(text))


def test_a_group_whose_tasks_are_waited_for_is_not() -> None:
    source = "async def f():\n    async with asyncio.TaskGroup() as g:\n        g.create_task(x())"
    assert not list(long_lived_groups(source))
