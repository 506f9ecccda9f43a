# SPDX-License-Identifier: Apache-2.0
"""The commands `nvdra-gpu-plugin release` and `resume`: have the running plugin give up NVML.

Each is a separate process, which asks the running plugin over its debug endpoint.
"""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final

from nvdra_api import json_text
from nvdra_runtime.kubeletplugin import debug_client
from nvdra_runtime.kubeletplugin.debug_client import Unreachable
from nvdra_runtime.process import output
from nvdra_runtime.settings import addresses, durations
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.settings.loader import Flag
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from nvdra_gpu_plugin.__about__ import __version__

_PROGRAM: Final = "nvdra-gpu-plugin"
_TIMEOUT_S: Final = 60.0
"""Closing NVML waits for claims that are just being prepared and for calls of GPUs that start;
resuming waits until the GPUs have been inspected. Each takes 20 s at most per part."""

_RELEASE_HELP: Final = """
While NVML is released, new pods with GPUs wait and running ones go on; pods that end are cleaned
up; the published devices stay. GPUs that claims hold are named, and nothing is released.

Examples:
  kubectl -n nvdra-system exec PLUGIN_POD -- nvdra-gpu-plugin release
  kubectl -n nvdra-system exec PLUGIN_POD -- nvdra-gpu-plugin release --for 1h
  nvidia-smi -pm 0 -i 0                           # on the node; persistence mode has it open, too
  nvidia-smi --gpu-reset -i 0
  kubectl -n nvdra-system exec PLUGIN_POD -- nvdra-gpu-plugin resume

The same by an annotation of the Node, until it is removed, or for a time:
  kubectl annotate node NODE gpu.nvidia.com/release-nvml=true
  kubectl annotate node NODE gpu.nvidia.com/release-nvml=15m,force
  kubectl annotate node NODE gpu.nvidia.com/release-nvml-
"""

_RESUME_HELP: Final = """
Example:
  kubectl -n nvdra-system exec PLUGIN_POD -- nvdra-gpu-plugin resume
"""


def _positive_duration(text: str) -> str:
    if durations.parse_seconds(text) <= 0:
        raise ValueError("must be longer than 0s")
    return text


DebugEndpoint = Annotated[
    str,
    AfterValidator(lambda address: addresses.validate(address, lowest_port=1)),
    Field(description="The plugin's own --debug-endpoint: where it takes commands."),
]


class ReleaseSettings(BaseModel):
    """Gives up NVML on this node, so that GPUs can be reset, their MIG mode switched, or the driver
    unloaded or replaced while the plugin runs. It ends by itself after the time.
    """  # noqa: D205 - one sentence of --help

    model_config = ConfigDict(frozen=True, extra="forbid")

    duration: Annotated[
        str, Flag(name="for", env=(), metavar="TIME"), AfterValidator(_positive_duration)
    ] = Field(default="10m", description="For how long, such as 90s, 10m or 2h.")
    force: Annotated[bool, Flag(env=())] = Field(
        default=False,
        description="Release NVML although claims hold GPUs, or GPUs would lose settings. "
        "Resetting a GPU that a pod uses makes that pod fail.",
    )
    debug_endpoint: DebugEndpoint = "127.0.0.1:6060"


class ResumeSettings(BaseModel):
    """Ends what the command release has begun: the plugin opens NVML, inspects the GPUs, and lets
    pods that wait go on.
    """  # noqa: D205 - one sentence of --help

    model_config = ConfigDict(frozen=True, extra="forbid")

    debug_endpoint: DebugEndpoint = "127.0.0.1:6060"


def release(argv: Sequence[str]) -> int:
    """Run the command `release`. The exit code is 1 if NVML is not released."""
    settings = process_settings.load(
        ReleaseSettings,
        program=f"{_PROGRAM} release",
        version=__version__,
        argv=argv,
        epilogue=_RELEASE_HELP,
    )
    seconds = durations.parse_seconds(settings.duration)
    document = {"duration_s": seconds, "is_forced": settings.force}
    return _ask(settings.debug_endpoint, "/debug/nvml/release", document)


def resume(argv: Sequence[str]) -> int:
    """Run the command `resume`. The exit code is 1 if the plugin cannot be asked."""
    settings = process_settings.load(
        ResumeSettings,
        program=f"{_PROGRAM} resume",
        version=__version__,
        argv=argv,
        epilogue=_RESUME_HELP,
    )
    return _ask(settings.debug_endpoint, "/debug/nvml/resume", {})


def _ask(endpoint: str, path: str, document: Mapping[str, Any]) -> int:
    """Ask the running plugin, and print its answer."""
    try:
        answer = debug_client.ask(
            _PROGRAM, endpoint, "POST", path, _TIMEOUT_S, json.dumps(document)
        )
    except Unreachable as error:
        output.print_error(f"Error: {error}")
        return 1
    text = answer.body.decode(errors="replace")
    if answer.code != HTTPStatus.OK:
        output.print_error(f"Error: {text.rstrip()}")
        return 1
    output.print_or_exit(f"{json_text.parse(text)['text']}\n")
    return 0
