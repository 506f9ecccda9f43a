"""`nvdra-imex-daemon run` and `check`, and `python -m nvdra_imex_daemon`."""

import sys
from collections.abc import Sequence
from typing import Final

from nvdra_api.runtime.process import settings as process_settings

from nvdra_imex_daemon.__about__ import __version__
from nvdra_imex_daemon.settings import Settings

PROGRAM: Final = "nvdra-imex-daemon"
COMMANDS: Final = ("run", "check")

USAGE: Final = """
Commands, after the flags:
  run
      Joins the clique, runs nvidia-imex and keeps it running, tells its peers apart by name, and
      says in the clique whether it is READY. Ends with 0 when told to stop, with 1 on a failure.
  check
      Asks the nvidia-imex of this container once: 0 when it is READY (or there is none to run,
      because --cliqueid is empty), else 1 with what it said. For exec probes.

Example, as in the pods that the controller makes:
  nvdra-imex-daemon -v 2 run
"""


def main() -> None:
    """Read command and settings, then do it."""
    command, flags = _split(sys.argv[1:])
    settings = process_settings.load(
        Settings, program=PROGRAM, version=__version__, argv=flags, epilogue=USAGE
    )
    if command == "check":
        from nvdra_imex_daemon import checking

        sys.exit(checking.main(settings))
    problems = list(settings.missing())
    if not command:
        problems = [f"a command is missing: {' or '.join(COMMANDS)}, after the flags"]
    if problems:
        sys.stderr.writelines(f"Error: {problem}\n" for problem in problems)
        sys.stderr.write(f"{PROGRAM} --help explains every flag.\n")
        sys.exit(1)
    _run(settings)


def _run(settings: Settings) -> None:
    # Imported here: half a second that a probe has no use for.
    from nvdra_api.runtime.process import app as process
    from nvdra_api.runtime.telemetry import logs

    from nvdra_imex_daemon import app

    logging = logs.configure(logs.Format(settings.logging_format), settings.v, PROGRAM)
    sys.exit(process.run(lambda stop: app.main(settings, logging, stop)))


def _split(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command, which stands behind the flags or before them, and the flags."""
    for at in (-1, 0):
        if words and words[at] in COMMANDS:
            return words[at], [*words[:at], *words[at:][1:]]
    return "", list(words)


if __name__ == "__main__":
    main()
