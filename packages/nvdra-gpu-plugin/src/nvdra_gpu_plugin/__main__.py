# SPDX-License-Identifier: Apache-2.0
"""`nvdra-gpu-plugin`, and `python -m nvdra_gpu_plugin`."""

import gc
import sys

from nvdra_gpu_plugin.__about__ import __version__

COMMANDS = """
Commands:
  status
      Prints the devices, the claims that hold them and the last failures of the running plugin.
      See nvdra-gpu-plugin status --help.
  release
      Gives up NVML for a time, so that an administrator can reset GPUs, switch their MIG mode, or
      unload or replace the driver. See nvdra-gpu-plugin release --help.
  resume
      Ends a release.
  mps-daemon
      Runs an MPS control daemon; it is the command of the Deployments that the plugin creates.
"""


def main() -> None:
    """Run the plugin until it is stopped, or a command that asks the running plugin."""
    if sys.argv[1:2] == ["mps-daemon"]:
        # Imported here, and the others below: one of these runs for each claim that uses MPS.
        from nvdra_gpu_plugin.mps import daemon_command

        sys.exit(daemon_command.main(sys.argv[2:]))
    from nvdra_gpu_plugin import release_command, status_command

    match sys.argv[1:2]:
        case ["status"]:
            sys.exit(status_command.main(sys.argv[2:]))
        case ["release"]:
            sys.exit(release_command.release(sys.argv[2:]))
        case ["resume"]:
            sys.exit(release_command.resume(sys.argv[2:]))
    _serve()


def _serve() -> None:
    gc.disable()  # imports leave no garbage; `process.run` enables it again
    # Imported here, because it takes half a second and commands do not need it.
    from nvdra_runtime.process import app as process
    from nvdra_runtime.settings import loader as process_settings
    from nvdra_runtime.telemetry import logs

    from nvdra_gpu_plugin import app
    from nvdra_gpu_plugin.settings import Settings

    settings = process_settings.load(
        Settings, program=app.PROGRAM, version=__version__, epilogue=COMMANDS
    )
    logging = logs.configure(logs.LogFormat(settings.logging_format), settings.v, app.PROGRAM)
    sys.exit(process.run(lambda stop: app.main(settings, logging, stop)))


if __name__ == "__main__":
    main()
