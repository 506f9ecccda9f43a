# SPDX-License-Identifier: Apache-2.0
"""kubectl for tests: apply manifests, wait for conditions, read objects as JSON.

An error of a wait names the condition and what was seen last.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from nvdra_testing import yaml_documents
from nvdra_testing.cluster import api_versions

POLL_S = 0.4
"""How often a wait polls: short compared with a pod's start, long compared with a request."""


class WaitTimeout(AssertionError):
    """A condition did not become true; the message says what was seen instead."""


@dataclass(frozen=True)
class Kubectl:
    """A cluster and a namespace in it, as an administrator sees them.

    Attributes:
        program: The path of kubectl.
        kubeconfig: The cluster and its administrator.
        namespace: The namespace that commands run in.
        resource_api_version: The version of resource.k8s.io that the cluster serves; manifests are
            converted to it.
    """

    program: str
    kubeconfig: Path
    namespace: str = "default"
    resource_api_version: str = "v1"

    def run(self, *arguments: str, text: str | None = None, timeout_s: float = 60) -> str:
        """Run kubectl in the namespace, return its output, and fail if it fails."""
        done = self.run_unchecked(*arguments, text=text, timeout_s=timeout_s)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr.strip()}"
        return done.stdout

    def run_unchecked(
        self, *arguments: str, text: str | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl without checking its exit status."""
        return subprocess.run(
            [*self.argv(), *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def argv(self) -> list[str]:
        """The command without arguments."""
        # By default, kubectl leaves its discovery cache in the user's home directory.
        cache = f"--cache-dir={self.kubeconfig.parent / 'kubectl-cache'}"
        return [self.program, f"--kubeconfig={self.kubeconfig}", cache, "-n", self.namespace]

    def apply(self, manifest: str | Path | Mapping[str, Any], *flags: str) -> None:
        """Create or change objects from a file, a YAML text or one object."""
        self.run("apply", "-f", "-", *flags, text=self._manifest_text(manifest))

    def get(self, kind: str, name: str = "", *arguments: str) -> Any:
        """An object, or the items of a list if no name is given."""
        words = [kind, name] if name else [kind]
        answer = json.loads(self.run("get", *words, *arguments, "-o", "json"))
        return answer if name else answer["items"]

    def exists(self, kind: str, name: str) -> bool:
        """Whether the object exists."""
        return self.run_unchecked("get", kind, name).returncode == 0

    def delete(self, kind: str, *names: str, timeout_s: float = 60) -> None:
        """Delete objects, and wait until they are gone."""
        self.run("delete", kind, *names, "--ignore-not-found", "--wait", timeout_s=timeout_s)

    def logs(self, pod: str, container: str = "") -> str:
        """The log of a container so far."""
        return self.run("logs", pod, *(["-c", container] if container else []))

    def exec(self, pod: str, *command: str, container: str = "") -> str:
        """Run a command in a container, and return its output."""
        where = ["-c", container] if container else []
        return self.run("exec", pod, *where, "--", *command)

    def events(self, name: str) -> list[tuple[str, str]]:
        """The reason and message of every event about an object."""
        found = self.get("events", "", f"--field-selector=involvedObject.name={name}")
        return [(event.get("reason", ""), event.get("message", "")) for event in found]

    def not_ready(self, pod: str) -> str | None:
        """Why a pod is not Ready: its conditions and last events; None if it is Ready."""
        status = self.get("pod", pod).get("status", {})
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        if conditions.get("Ready", {}).get("status") == "True":
            return None
        why = [f"phase {status.get('phase')}"]
        why += [c["message"] for c in conditions.values() if c.get("message")]
        why += [f"{reason}: {message}" for reason, message in self.events(pod)[-4:]]
        return "; ".join(why)

    def wait_running(self, *pods: str, timeout_s: float = 120) -> None:
        """Wait until every pod is Ready."""
        for pod in pods:
            self.wait(partial(self.not_ready, pod), f"pod {pod} to be Ready", timeout_s)

    def wait(self, missing: Callable[[], str | None], what: str, timeout_s: float = 60) -> None:
        """Wait until `missing` returns None; until then it returns what is missing."""
        deadline = time.monotonic() + timeout_s
        while (seen := missing()) is not None:
            if time.monotonic() > deadline:
                raise WaitTimeout(f"waited {timeout_s:.0f} s for {what}; last seen: {seen}")
            time.sleep(POLL_S)

    def apply_rejected(self, manifest: str | Path | Mapping[str, Any], *flags: str) -> str:
        """Apply objects that the API server must reject, and return its error."""
        done = self.run_unchecked("apply", "-f", "-", *flags, text=self._manifest_text(manifest))
        assert done.returncode != 0, f"accepted: {done.stdout}"
        return done.stderr

    def in_namespace(self, namespace: str) -> "Kubectl":
        """The same cluster with another namespace."""
        return replace(self, namespace=namespace)

    @contextmanager
    def fresh_namespace(self) -> Iterator["Kubectl"]:
        """A namespace for one test. Its contents are deleted some seconds after the test."""
        name = f"t-{uuid4().hex[:8]}"
        self.run("create", "namespace", name)
        try:
            yield self.in_namespace(name)
        finally:
            self.run("delete", "namespace", name, "--wait=false")

    def _manifest_text(self, manifest: str | Path | Mapping[str, Any]) -> str:
        """A manifest in the version that the cluster serves."""
        if isinstance(manifest, Path):
            manifest = manifest.read_text()
        objects = yaml_documents.load_all(manifest) if isinstance(manifest, str) else [manifest]
        return yaml.safe_dump_all(
            api_versions.convert_manifest(one, self.resource_api_version) for one in objects
        )
