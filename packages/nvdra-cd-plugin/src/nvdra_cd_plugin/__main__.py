"""`nvdra-cd-plugin`, and `python -m nvdra_cd_plugin`."""

import sys

from nvdra_api.runtime.plugin import status
from nvdra_api.runtime.plugin.status import Column

from nvdra_cd_plugin.__about__ import __version__

PROGRAM = "nvdra-cd-plugin"
COLUMNS = (Column("DOMAIN", "domain"), Column("CLIQUE", "clique"))
COMMANDS = """
Commands:
  status
      Prints what the plugin that runs here knows: channel and daemon, for which domain, who holds
      them, the last failures. nvdra-cd-plugin status --help says more.
"""


def main() -> None:
    """Read the settings, then run until told to stop; or print the status of the one that runs."""
    if sys.argv[1:2] == ["status"]:
        sys.exit(status.main(sys.argv[2:], PROGRAM, __version__, COLUMNS))
    _serve()


def _serve() -> None:
    # Imported here: half a second that `status` has no use for.
    from nvdra_api.runtime.process import app as process
    from nvdra_api.runtime.process import settings as process_settings
    from nvdra_api.runtime.telemetry import logs

    from nvdra_cd_plugin import app
    from nvdra_cd_plugin.settings import Settings

    settings = process_settings.load(
        Settings, program=app.PROGRAM, version=__version__, epilogue=COMMANDS
    )
    logging = logs.configure(logs.Format(settings.logging_format), settings.v, app.PROGRAM)
    sys.exit(process.run(lambda stop: app.main(settings, logging, stop)))


if __name__ == "__main__":
    main()
