# SPDX-License-Identifier: Apache-2.0
"""The process behind targets that are functions: reads cases, calls them, says what they raised.

A case comes on standard input as `MODULE:FUNCTION` and its bytes, each after its length in four
bytes; an answer goes to standard output in the same form: empty, or a traceback. What a function
prints goes to standard error.
"""

import faulthandler
import importlib
import os
import resource
import signal
import struct
import sys
import traceback

MAX_MEMORY = 4 << 30
"""Address space: a fault takes the memory of this process, not of the machine."""


def _read() -> bytes:
    header = sys.stdin.buffer.read(4)
    return sys.stdin.buffer.read(struct.unpack(">I", header)[0]) if header else b""


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    faulthandler.register(signal.SIGUSR2, chain=False)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    while name := _read().decode():
        case = _read()
        module, _, attribute = name.partition(":")
        function = getattr(importlib.import_module(module), attribute)
        answer = b""
        try:
            function(case)
        except BaseException:  # noqa: BLE001 - whatever it is, it is the answer
            answer = traceback.format_exc().encode(errors="backslashreplace")
            if len(answer) > 20_000:
                answer = answer[:4000] + b"\n...\n" + answer[-12_000:]
        answers.write(struct.pack(">I", len(answer)) + answer)
        answers.flush()


main()
