# SPDX-License-Identifier: Apache-2.0
"""The command `nvdra-webhook`, also run as `python -m nvdra_webhook`."""

import sys

import uvloop
from nvdra_runtime.process import app as process
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.telemetry import logs

from nvdra_webhook import app
from nvdra_webhook.__about__ import __version__
from nvdra_webhook.settings import Settings


def main() -> None:
    """Read the settings, then run until a signal says to stop."""
    settings = process_settings.load(Settings, program=app.PROGRAM, version=__version__)
    logging = logs.configure(logs.LogFormat(settings.logging_format), settings.v, app.PROGRAM)
    sys.exit(
        process.run(
            lambda stop: app.main(settings, logging, stop), loop_factory=uvloop.new_event_loop
        )
    )


if __name__ == "__main__":
    main()
