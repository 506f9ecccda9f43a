# SPDX-License-Identifier: Apache-2.0
"""A program that makes one write, for tests of writes that block.

    python -I -S file_writer.py FILE TEXT

It says `writing` before the write, and then `ok` or the name of the error. It imports what
is built into Python only, so that it starts quickly on an emulated processor.
"""

import errno
import os
import sys


def main() -> int:
    """Make the write. Returns 1 if it failed."""
    path, text = sys.argv[1:]
    descriptor = os.open(path, os.O_WRONLY)
    print("writing", flush=True)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        print(errno.errorcode[error.errno or 0], flush=True)
        return 1
    print("ok", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
