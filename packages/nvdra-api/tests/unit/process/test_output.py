# SPDX-License-Identifier: Apache-2.0
"""A command that cannot write its output fails."""

import subprocess
import sys

PROGRAM = "from nvdra_runtime.process import output; output.print_or_exit('text\\n')"


def test_the_text_is_printed() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    assert done.stdout == b"text\n"


def test_a_full_disk_is_an_error() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"Error: cannot write the output: No space left on device\n"


def test_a_reader_that_has_gone_is_no_error_message() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", f"input(); {PROGRAM}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (1, b"")
