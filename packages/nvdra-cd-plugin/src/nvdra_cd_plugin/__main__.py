# SPDX-License-Identifier: Apache-2.0
"""The command `nvdra-cd-plugin`, also run by `python -m nvdra_cd_plugin`."""

import gc
import sys

from nvdra_runtime.kubeletplugin import status_command
from nvdra_runtime.kubeletplugin.status_command import Column

from nvdra_cd_plugin.__about__ import __version__

PROGRAM = "nvdra-cd-plugin"
COLUMNS = (Column("DOMAIN", "domain"), Column("CLIQUE", "clique"))
COMMANDS = """
Commands:
  status
      Prints the channel and the daemon of this node, the domain and the claims that use them, and
      the last failures of the running plugin. See nvdra-cd-plugin status --help.
"""


def main() -> None:
    """Run the plugin until it is stopped, or print the status of the plugin that runs here."""
    if sys.argv[1:2] == ["status"]:
        sys.exit(status_command.main(sys.argv[2:], PROGRAM, __version__, COLUMNS))
    _serve()


def _serve() -> None:
    gc.disable()  # imports leave no garbage; `process_app.run` enables it again
    # Imported here, because it takes half a second that the command `status` can save.
    from nvdra_runtime.process import app as process_app
    from nvdra_runtime.settings import loader
    from nvdra_runtime.telemetry import logs

    from nvdra_cd_plugin import app
    from nvdra_cd_plugin.settings import Settings

    settings = loader.load(Settings, program=app.PROGRAM, version=__version__, epilogue=COMMANDS)
    logging = logs.configure(logs.LogFormat(settings.logging_format), settings.v, app.PROGRAM)
    sys.exit(process_app.run(lambda stop: app.main(settings, logging, stop)))


if __name__ == "__main__":
    main()
