# SPDX-License-Identifier: Apache-2.0
"""The environment variables of `nvdra-cdi`, those of `nvidia-ctk cdi`.

A flag wins over its variable. A variable that is empty counts as not set.

Source: docs/reference/cdi.md §13.1.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nvdra_cdi.cli import arguments, values
from nvdra_cdi.cli.output import UsageError


@dataclass(frozen=True)
class Variable:
    """A variable, the attribute of the flag that it stands for, and how its value is read."""

    name: str
    attribute: str
    read: Callable[[str], Any] = str


VARIABLES = (
    Variable("NVIDIA_CTK_DRIVER_ROOT", "driver_root"),
    Variable("NVIDIA_CTK_DEV_ROOT", "dev_root"),
    Variable("NVIDIA_CTK_CDI_HOOK_PATH", "nvidia_cdi_hook_path"),
    Variable("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", "output"),
    Variable("NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT", "format", arguments.output_format),
    Variable("NVIDIA_CTK_CDI_GENERATE_MODE", "mode", arguments.mode),
    Variable("NVIDIA_CTK_CDI_GENERATE_VENDOR", "vendor"),
    Variable("NVIDIA_CTK_CDI_GENERATE_CLASS", "class_"),
    Variable("NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS", "device_id", values.texts),
    Variable(
        "NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES",
        "device_name_strategy",
        arguments.device_name_strategies,
    ),
    Variable("NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE", "no_all_device", values.flag),
    Variable("NVIDIA_CTK_CDI_GENERATE_LDCONFIG_PATH", "ldconfig_path"),
    Variable("NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS", "disable_hook", values.texts),
    Variable("NVIDIA_CTK_CDI_GENERATE_ENABLED_HOOKS", "enable_hook", values.texts),
    Variable("NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS", "feature_flag", values.texts),
    Variable("NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS", "library_search_path", values.paths),
    Variable("NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS", "config_search_path", values.paths),
)

SPEC_DIRS = Variable("NVIDIA_CTK_CDI_SPEC_DIRS", "spec_dir", values.texts)
"""Of every command that reads specs; the toolkit's only one is `list`."""


def fill(given: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Set the arguments that were not given and whose variables are set.

    Raises:
        UsageError: The value of a variable is wrong.
    """
    for variable in VARIABLES if given.command == "generate" else (SPEC_DIRS,):
        value = environment.get(variable.name)
        if not value or getattr(given, variable.attribute, True):
            continue
        try:
            setattr(given, variable.attribute, variable.read(value))
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{variable.name}={value}: {error}") from error
