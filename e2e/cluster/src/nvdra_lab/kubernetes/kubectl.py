# SPDX-License-Identifier: Apache-2.0
"""Queries a cluster with kubectl, which understands every kubeconfig."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvdra_lab import subprocesses
from nvdra_lab.errors import LabError


class Kubectl:
    """A kubectl with one kubeconfig.

    Args:
        program: The program's path.
        kubeconfig: The cluster and its user.
        cache: The discovery cache, which would otherwise stay in the user's home directory.
        variables: The environment.
    """

    def __init__(
        self, program: str, kubeconfig: Path, cache: Path, variables: Mapping[str, str]
    ) -> None:
        self._argv = [program, f"--kubeconfig={kubeconfig}"]
        self._variables = {**variables, "KUBECACHEDIR": str(cache)}

    def get(self, *arguments: str) -> Any:
        """`kubectl get … -o json`, parsed.

        Raises:
            LabError: kubectl failed; the message has its output.
        """
        return json.loads(self._run("get", *arguments, "-o", "json"))

    def exists(self, *arguments: str) -> bool:
        """Whether the object exists and the API server answers."""
        try:
            self._run("get", *arguments, "-o", "name")
        except LabError:
            return False
        return True

    def apply(self, manifest: str) -> None:
        """`kubectl apply` of a YAML text."""
        subprocesses.run(
            [*self._argv, "apply", "-f", "-"], stdin=manifest.encode(), env=self._variables
        )

    def text(self, *arguments: str) -> str:
        """The output of any command."""
        return self._run(*arguments)

    def _run(self, *arguments: str) -> str:
        return subprocesses.run(
            [*self._argv, "--request-timeout=10s", *arguments], env=self._variables
        )
