# SPDX-License-Identifier: Apache-2.0
"""The command `nvdra-cd-controller`, also run as `python -m nvdra_cd_controller`."""

import sys
from typing import Final

from nvdra_runtime.process import app as process
from nvdra_runtime.process import output
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.telemetry import logs

from nvdra_cd_controller import app
from nvdra_cd_controller.__about__ import __version__
from nvdra_cd_controller.crds import definitions
from nvdra_cd_controller.settings import Settings

COMMANDS: Final = """
Commands:
  crds
      Prints the CustomResourceDefinitions of this version, for those who install them themselves:
      nvdra-cd-controller crds | kubectl apply --server-side --force-conflicts -f -
"""


def main() -> None:
    """Read the settings, then run until a signal says to stop; or run a command."""
    if sys.argv[1:] == ["crds"]:
        output.print_or_exit(definitions.text())
        sys.exit(0)
    settings = process_settings.load(
        Settings, program=app.PROGRAM, version=__version__, epilogue=COMMANDS
    )
    logging = logs.configure(logs.LogFormat(settings.logging_format), settings.v, app.PROGRAM)
    sys.exit(process.run(lambda stop: app.main(settings, logging, stop)))


if __name__ == "__main__":
    main()
