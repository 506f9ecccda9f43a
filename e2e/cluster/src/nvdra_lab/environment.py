# SPDX-License-Identifier: Apache-2.0
"""The only module of `lab` that reads the environment."""

import dataclasses
import os
import sys
from pathlib import Path

from nvdra_lab import layout
from nvdra_lab.layout import CacheDir


@dataclasses.dataclass(frozen=True)
class Environment:
    """The environment of the caller, read once at the start.

    Attributes:
        path: The search path for programs.
        is_root: Whether namespaces can be created.
        cache: The directory of builds.
        state: The directory of all labs.
        assets: `KUBEBUILDER_ASSETS`, a directory that may contain binaries.
        source: The directory `e2e/cluster`; `lab` runs from its checkout.
        variables: All variables, for programs that are started.
    """

    path: str
    is_root: bool
    cache: CacheDir
    state: Path
    assets: Path | None
    source: Path
    variables: dict[str, str]

    @property
    def repository(self) -> Path:
        """The checkout."""
        return self.source.parents[1]

    @property
    def python(self) -> str:
        """The interpreter of this process, in which the simulator is installed."""
        return sys.executable


def read() -> Environment:
    """The environment of this process."""
    variables = dict(os.environ)
    is_root = os.geteuid() == 0
    assets = variables.get("KUBEBUILDER_ASSETS")
    return Environment(
        path=variables.get("PATH", os.defpath),
        is_root=is_root,
        cache=CacheDir(layout.cache_root(variables.get("XDG_CACHE_HOME"), Path.home())),
        state=layout.state_root(is_root, variables.get("XDG_STATE_HOME"), Path.home()),
        assets=Path(assets) if assets else None,
        source=Path(__file__).resolve().parents[2],
        variables=variables,
    )
