# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the charts' tests: helm, and the charts of this repository."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from nvdra_testing.charts import CHARTS


@pytest.fixture(scope="session")
def charts() -> Path:
    return CHARTS


@pytest.fixture(scope="session")
def binaries() -> Path:
    """The directory of built programs, `<name>-<version>/<program>`."""
    caches = Path(os.getenv("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "nvdra" / "bin"


@pytest.fixture(scope="session")
def helm(binaries: Path) -> str:
    found = shutil.which("helm", path=f"{os.getenv('PATH', '')}:{binaries / 'helm-3.21.4'}")
    assert found, f"no helm on PATH nor in {binaries / 'helm-3.21.4'}: `lab` builds it"
    return found


@pytest.fixture(scope="session")
def helm_release(binaries: Path) -> Callable[[str], str]:
    """Build another release of helm, for soaks: it takes minutes once."""

    def program(version: str) -> str:
        place = binaries / f"helm-{version}"
        if not (place / "helm").exists():
            package = f"helm.sh/helm/v{version.partition('.')[0]}/cmd/helm@v{version}"
            environment = {**os.environ, "GOBIN": str(place), "GOFLAGS": "-p=1"}
            subprocess.run(["go", "install", package], env=environment, check=True)
        return str(place / "helm")

    return program
