"""The way in: arguments to an answer, errors to one line, never a traceback."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from nvdra_cdi.cli import arguments
from nvdra_cdi.cli.answers import FAILED, MISUSED, Answer, UsageError
from nvdra_cdi.errors import CDIError, one_line

_INTERRUPTED = 130  # as shells have it: 128 and the signal's number


def main() -> None:
    """Run `nvdra-cdi` with the process's arguments and end the process."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # a TextIO has it
    if logging.lastResort is not None:  # what discovery leaves out, it logs as a warning
        logging.lastResort.setFormatter(logging.Formatter("warning: %(message)s"))
    try:
        try:
            code = _say(_answer(sys.argv[1:]))
        finally:  # also behind --help, which leaves at once
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads the rest
        code = FAILED
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or exit flushes it again
        sys.stderr.write(f"error: cannot write the answer: {error.strerror}\n")
        code = FAILED
    except KeyboardInterrupt:
        code = _INTERRUPTED
    sys.exit(code)


def _answer(argv: Sequence[str]) -> Answer:
    given = arguments.parser().parse_args(argv)
    try:
        return _command(given.command)(given)
    except UsageError as error:
        return Answer(remarks=(f"error: {one_line(str(error))}",), code=MISUSED)
    except CDIError as error:
        return Answer(remarks=(f"error: {one_line(str(error))}",), code=FAILED)


def _command(name: str) -> Callable[[Any], Answer]:
    """A command's function; generation alone brings pydantic, so it is imported when asked for."""
    if name == "generate":
        from nvdra_cdi.cli import generating

        return generating.run
    from nvdra_cdi.cli import checking, injecting, listing, resolving, schemas

    return {
        "list": listing.run,
        "validate": checking.run,
        "inject": injecting.run,
        "resolve": resolving.run,
        "schema": schemas.run,
    }[name]


def _say(answer: Answer) -> int:
    if answer.text:
        sys.stdout.write(answer.text if answer.text.endswith("\n") else f"{answer.text}\n")
    sys.stdout.flush()
    for remark in answer.remarks:
        sys.stderr.write(f"{remark}\n")
    return answer.code
