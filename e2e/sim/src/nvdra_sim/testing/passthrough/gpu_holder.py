# SPDX-License-Identifier: Apache-2.0
"""A program that has the node of a GPU open, or keeps only a mapping of it.

    python -I -S gpu_holder.py open NODE
    python -I -S gpu_holder.py map NODE

It says a line of JSON as `vfio_holder` does, and holds until its standard input ends. `map` closes
the descriptor after the mapping.
"""

import errno
import mmap
import os
import sys


def main() -> int:
    """Hold what the arguments say. Returns 1 if that is not possible."""
    kind, node = sys.argv[1:]
    try:
        descriptor = os.open(node, os.O_RDWR)
        if kind == "map":
            keep_mapping(descriptor)
            os.close(descriptor)
    except OSError as error:
        say('"open"', f'"{errno.errorcode[error.errno or 0]}"')
        return 1
    say("null", "null")
    sys.stdin.read()
    return 0


def keep_mapping(descriptor: int) -> None:
    """Map a page until the process ends. Python's own mapping would keep a descriptor, too."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    length = ctypes.c_size_t(mmap.PAGESIZE)
    offset = ctypes.c_long(0)
    where = library.mmap(None, length, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, offset)
    if where == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")


def say(failed: str, number: str) -> None:
    """Print the line. The arguments are JSON."""
    print(f'{{"viable": null, "failed": {failed}, "errno": {number}}}', flush=True)


if __name__ == "__main__":
    sys.exit(main())
