# SPDX-License-Identifier: Apache-2.0
"""Which files of a kernel's modules are loaded, and in which order. Nothing is read or loaded here.

Source: man 5 modules.dep, and Documentation/kbuild/kbuild.rst of Linux for `modules.builtin`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath


def load_order(names: Iterable[str], dependencies: str, builtin: str) -> list[str]:
    """The files to load, each after what it needs.

    Args:
        names: The names of modules, with `-` or `_`.
        dependencies: The text of `modules.dep`.
        builtin: The text of `modules.builtin`: modules that are part of the kernel itself.

    Returns:
        Paths as in `modules.dep`, each once.

    Raises:
        LookupError: The kernel has no such module.
    """
    needs = {}
    for line in dependencies.splitlines():
        path, _, needed = line.partition(":")
        needs[path] = needed.split()
    paths = {_name(path): path for path in needs}
    of_kernel = {_name(path) for path in builtin.splitlines()}
    ordered: dict[str, None] = {}

    def add(path: str) -> None:
        for needed in needs[path]:
            add(needed)
        ordered.setdefault(path)

    for name in names:
        wanted = name.replace("-", "_")
        if wanted in paths:
            add(paths[wanted])
        elif wanted not in of_kernel:
            raise LookupError(f"the kernel has no module {name}")
    return list(ordered)


def _name(path: str) -> str:
    return PurePosixPath(path).name.partition(".ko")[0].replace("-", "_")
