# SPDX-License-Identifier: Apache-2.0
"""The errors of `lab` for its user."""

from pathlib import Path


class LabError(Exception):
    """A failure with a message for the user: what is wrong and what to do about it."""


class ComponentError(LabError):
    """A component of the cluster did not start, or ended while the lab was starting.

    Args:
        component: Its name for `lab logs`, such as `kube-apiserver` or `node-1/kubelet`.
        reason: What happened, as one clause.
        log: The file with its output.
    """

    def __init__(self, component: str, reason: str, log: Path) -> None:
        super().__init__(f"{component}: {reason}")
        self.component = component
        self.log = log
