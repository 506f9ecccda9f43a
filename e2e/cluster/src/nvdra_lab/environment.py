"""The one place where `lab` reads its environment."""

import dataclasses
import os
import sys
from pathlib import Path

from nvdra_lab import layout
from nvdra_lab.layout import CacheDir


@dataclasses.dataclass(frozen=True)
class Environment:
    """What the caller's environment says, read once at the start.

    Attributes:
        path: The search path for programs.
        is_root: Whether we may make namespaces.
        cache: Where builds are kept.
        state: The folder of all labs.
        assets: `KUBEBUILDER_ASSETS`, a folder that may hold binaries already.
        source: The project's folder of the lab, `e2e/cluster`; the tool runs from its checkout.
        variables: All of it, for programs that we start.
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
        """The interpreter we run in, which has the simulator installed."""
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
