# SPDX-License-Identifier: Apache-2.0
"""An import of a package whose extra is not installed says which extra is missing."""

import re
import tomllib
from pathlib import Path

import pytest
from nvdra_runtime import extras

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
ROOMS = Path(extras.__file__).parent


def test_nothing_happens_if_every_module_is_installed() -> None:
    extras.require("nvdra_runtime.kube", "kube", "kubernetes", "yaml")


def test_a_missing_module_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(ImportError) as caught:
        extras.require("nvdra_runtime.kube", "kube", "yaml", "no_such_module")
    assert str(caught.value) == (
        "nvdra_runtime.kube needs no_such_module, which the extra 'kube' installs: "
        "pip install 'nvdra-api[kube]'"
    )
    assert caught.value.name == "no_such_module"


def test_every_extra_that_is_asked_for_exists() -> None:
    known = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    asked = {
        extra
        for path in ROOMS.rglob("*.py")
        for extra in re.findall(r'^require\(\s*__name__,\s*"(\w+)"', path.read_text(), re.MULTILINE)
    }
    assert asked <= set(known)
    assert asked == {"telemetry", "http", "kube", "node", "plugin"}
