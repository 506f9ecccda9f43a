# SPDX-License-Identifier: Apache-2.0
"""Read a configuration file into its model. Each error contains the path of its field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from nvdra_sim.errors import ConfigError, Problem

Source = Mapping[str, Any] | Path | str
FileT = TypeVar("FileT", bound=BaseModel)


def read(model: type[FileT], source: Source) -> FileT:
    """Reads a YAML or JSON file, or a mapping with the same content.

    Raises:
        ConfigError: The content is invalid.
        OSError: The file cannot be read.
    """
    try:
        return model.model_validate(_mapping(source))
    except ValidationError as error:
        raise ConfigError.from_validation(error) from error


def _mapping(source: Source) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    try:
        text = Path(source).read_text(encoding="utf-8")
        loaded = yaml.load(text, yaml.CSafeLoader)  # libyaml: ten times as fast
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("", f"not YAML: {error}")]) from error
    if not isinstance(loaded, dict):
        raise ConfigError([Problem("", "not a mapping")])
    return loaded
