# SPDX-License-Identifier: Apache-2.0
"""What each tree of files of an image needs at its end: byte code, and times that never differ."""

import compileall
import os
import py_compile
from pathlib import Path


def finish(tree: Path) -> None:
    """Compile all Python of a tree, and give every file the same time.

    No container then compiles anything at its start: the files of an image never change, so the
    byte code is used without a look at its source. Equal contents make equal layers.

    Raises:
        SystemExit: A file does not compile.
    """
    compiled = compileall.compile_dir(
        tree,
        quiet=1,
        stripdir=str(tree),
        prependdir="/",
        workers=0,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    if not compiled:
        raise SystemExit(f"error: {tree} has Python that does not compile")
    for path in (tree, *tree.rglob("*")):
        os.utime(path, (0, 0), follow_symlinks=False)
