# SPDX-License-Identifier: Apache-2.0
"""YAML read by libyaml.

PyYAML's own parser takes ten times as long, which the many objects of charts make felt.
"""

from collections.abc import Iterator
from typing import Any

import yaml


def load(text: str) -> Any:
    """The only document of a text."""
    return yaml.load(text, yaml.CSafeLoader)


def load_all(text: str) -> Iterator[Any]:
    """All documents of a text, in order; an empty one is None."""
    return yaml.load_all(text, yaml.CSafeLoader)
