# SPDX-License-Identifier: Apache-2.0
"""The commands `nvdra-imex-daemon run` and `check`, also run as `python -m nvdra_imex_daemon`."""

import gc
import sys
from collections.abc import Sequence
from typing import Final

from nvdra_runtime.process import output
from nvdra_runtime.settings import loader as process_settings

from nvdra_imex_daemon.__about__ import __version__
from nvdra_imex_daemon.settings import Settings

PROGRAM: Final = "nvdra-imex-daemon"
COMMANDS: Final = ("run", "check")

USAGE: Final = """
Commands, after the flags:
  run
      Joins the node's clique, runs nvidia-imex and restarts it when it ends, tells it about its
      peers, and reports in the clique whether it is READY. Exits with 0 when it is told to stop,
      and with 1 on a failure.
  check
      Asks the nvidia-imex of this container once. Exits with 0 if it is READY, or if --cliqueid
      is empty, as then none runs. Otherwise prints its answer and exits with 1. For exec probes.

Example, as in the pods that the controller makes:
  nvdra-imex-daemon -v 2 run
"""


def main() -> None:
    """Read the command and the settings, then run the command."""
    command, flags = _split_command(sys.argv[1:])
    settings = process_settings.load(
        Settings, program=PROGRAM, version=__version__, argv=flags, epilogue=USAGE
    )
    if command == "check":
        from nvdra_imex_daemon import check_command

        sys.exit(check_command.main(settings))
    problems = list(settings.missing_settings())
    if not command:
        problems = [f"a command is missing: {' or '.join(COMMANDS)}, after the flags"]
    if problems:
        for problem in problems:
            output.print_error(f"Error: {problem}")
        output.print_error(f"{PROGRAM} --help describes every flag.")
        sys.exit(1)
    _run(settings)


def _run(settings: Settings) -> None:
    gc.disable()  # imports leave no garbage; `process.run` enables it again
    # Imported here because it takes half a second, which a probe need not spend.
    from nvdra_runtime.process import app as process
    from nvdra_runtime.telemetry import logs

    from nvdra_imex_daemon import app

    logging = logs.configure(logs.LogFormat(settings.logging_format), settings.v, PROGRAM)
    sys.exit(process.run(lambda stop: app.main(settings, logging, stop)))


def _split_command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The command, which is the first or the last argument, and the flags."""
    for at in (-1, 0):
        if arguments and arguments[at] in COMMANDS:
            return arguments[at], [*arguments[:at], *arguments[at:][1:]]
    return "", list(arguments)


if __name__ == "__main__":
    main()
