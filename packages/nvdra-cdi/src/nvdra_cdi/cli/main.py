# SPDX-License-Identifier: Apache-2.0
"""The entry point of `nvdra-cdi`. Errors are printed as one line, without a traceback."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from nvdra_cdi.cli import arguments, environment
from nvdra_cdi.cli.output import EXIT_FAILURE, EXIT_USAGE, CommandOutput, UsageError
from nvdra_cdi.errors import CDIError, one_line

_EXIT_INTERRUPTED = 130  # the convention of shells: 128 plus the number of the signal


def main() -> None:
    """Run `nvdra-cdi` with the arguments of the process, then exit."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # a TextIO has this method
    if logging.lastResort is not None:  # discovery logs a warning for each file it leaves out
        logging.lastResort.setFormatter(logging.Formatter("warning: %(message)s"))
    try:
        try:
            code = _write(_run(sys.argv[1:]))
        finally:  # also after --help, which exits in the parser
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone
        code = EXIT_FAILURE
    except OSError as error:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # else the exit flushes again
        sys.stderr.write(f"error: cannot write the output: {error.strerror}\n")
        code = EXIT_FAILURE
    except KeyboardInterrupt:
        code = _EXIT_INTERRUPTED
    sys.exit(code)


def _run(argv: Sequence[str]) -> CommandOutput:
    given = arguments.parser().parse_args(argv)
    try:
        environment.fill(given, os.environ)  # noqa: TID251 - the command's variables, once
        return _command_function(given.command)(given)
    except UsageError as error:
        return CommandOutput(stderr_lines=(f"error: {one_line(str(error))}",), exit_code=EXIT_USAGE)
    except CDIError as error:
        return CommandOutput(
            stderr_lines=(f"error: {one_line(str(error))}",), exit_code=EXIT_FAILURE
        )


def _command_function(name: str) -> Callable[[Any], CommandOutput]:
    """The function of a subcommand. Only `generate` needs pydantic, which is slow to import."""
    if name == "generate":
        from nvdra_cdi.cli import generate_command

        return generate_command.run
    from nvdra_cdi.cli import (
        dirs_command,
        inject_command,
        list_command,
        monitor_command,
        resolve_command,
        schema_command,
        transform_command,
        validate_command,
    )

    return {
        "list": list_command.run,
        "validate": validate_command.run,
        "inject": inject_command.run,
        "resolve": resolve_command.run,
        "schema": schema_command.run,
        "transform": transform_command.run,
        "dirs": dirs_command.run,
        "monitor": monitor_command.run,
    }[name]


def _write(output: CommandOutput) -> int:
    if output.stdout:
        sys.stdout.write(output.stdout if output.stdout.endswith("\n") else f"{output.stdout}\n")
    sys.stdout.flush()
    for line in output.stderr_lines:
        sys.stderr.write(f"{line}\n")
    return output.exit_code
