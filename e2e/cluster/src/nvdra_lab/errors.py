"""What `lab` tells its user when it cannot go on. No effects live here."""

from pathlib import Path


class LabError(Exception):
    """One failure in the user's words: what is wrong, and what to do about it."""


class ComponentError(LabError):
    """A component of the cluster did not start or died while the lab came up.

    Args:
        component: Its name as `lab logs` takes it, as `kube-apiserver` or `node-1/kubelet`.
        reason: What happened to it, one clause.
        log: The file its output went to.
    """

    def __init__(self, component: str, reason: str, log: Path) -> None:
        super().__init__(f"{component}: {reason}")
        self.component = component
        self.log = log
