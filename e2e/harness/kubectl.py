"""kubectl as a test uses it: apply a manifest, wait for a fact, read objects as JSON.

Every wait names what it waited for and what it saw last, so that a failing test says why.
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

import served
import yaml

POLL_S = 0.2
"""How often a wait looks again: short beside what a pod's start takes, long beside a request."""


class WaitedInVain(AssertionError):
    """What was waited for did not come true; the message says what was seen instead."""


@dataclass(frozen=True)
class Kubectl:
    """A cluster, and a namespace in it, as an administrator sees them.

    `dra` is the version of resource.k8s.io that it serves; what is applied is written in it.
    """

    program: str
    kubeconfig: Path
    namespace: str = "default"
    dra: str = "v1"

    def run(self, *arguments: str, text: str | None = None, timeout_s: float = 60) -> str:
        """Run kubectl in the namespace; its output. A failure carries what it printed."""
        done = self.attempt(*arguments, text=text, timeout_s=timeout_s)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr.strip()}"
        return done.stdout

    def attempt(
        self, *arguments: str, text: str | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, whatever comes of it."""
        return subprocess.run(
            [*self.argv(), *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def argv(self) -> list[str]:
        """The command, to which arguments are added."""
        # kubectl would keep its discovery cache in the user's home, and leave it there.
        cache = f"--cache-dir={self.kubeconfig.parent / 'kubectl-cache'}"
        return [self.program, f"--kubeconfig={self.kubeconfig}", cache, "-n", self.namespace]

    def apply(self, manifest: str | Path | Mapping[str, Any], *flags: str) -> None:
        """Create or change objects: a file, YAML text, or one object; `--as=` by somebody."""
        self.run("apply", "-f", "-", *flags, text=self._text(manifest))

    def get(self, kind: str, name: str = "", *arguments: str) -> Any:
        """An object, or a list's items when no name is given."""
        words = [kind, name] if name else [kind]
        answer = json.loads(self.run("get", *words, *arguments, "-o", "json"))
        return answer if name else answer["items"]

    def exists(self, kind: str, name: str) -> bool:
        """Whether there is such an object now."""
        return self.attempt("get", kind, name).returncode == 0

    def delete(self, kind: str, *names: str, timeout_s: float = 60) -> None:
        """Delete and wait until they are gone."""
        self.run("delete", kind, *names, "--ignore-not-found", "--wait", timeout_s=timeout_s)

    def logs(self, pod: str, container: str = "") -> str:
        """What a container has printed so far."""
        return self.run("logs", pod, *(["-c", container] if container else []))

    def exec(self, pod: str, *command: str, container: str = "") -> str:
        """What a command prints inside a container."""
        where = ["-c", container] if container else []
        return self.run("exec", pod, *where, "--", *command)

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of every Event about the object."""
        found = self.get("events", "", f"--field-selector=involvedObject.name={name}")
        return [(event.get("reason", ""), event.get("message", "")) for event in found]

    def not_ready(self, pod: str) -> str | None:
        """What keeps a pod from being Ready: its conditions and last events; None if it is."""
        status = self.get("pod", pod).get("status", {})
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        if conditions.get("Ready", {}).get("status") == "True":
            return None
        why = [f"phase {status.get('phase')}"]
        why += [c["message"] for c in conditions.values() if c.get("message")]
        why += [f"{reason}: {message}" for reason, message in self.events(pod)[-4:]]
        return "; ".join(why)

    def wait_running(self, *pods: str, timeout_s: float = 60) -> None:
        """Until every pod is Ready."""
        for pod in pods:
            self.wait(partial(self.not_ready, pod), f"pod {pod} to be Ready", timeout_s)

    def wait(self, lacking: Callable[[], str | None], what: str, timeout_s: float = 30) -> None:
        """Until `lacking` says None; else it says what is still missing."""
        deadline = time.monotonic() + timeout_s
        while (seen := lacking()) is not None:
            if time.monotonic() > deadline:
                raise WaitedInVain(f"waited {timeout_s:.0f} s for {what}; last seen: {seen}")
            time.sleep(POLL_S)

    def refuses(self, manifest: str | Path | Mapping[str, Any], *flags: str) -> str:
        """What the API server says against objects that it must not take."""
        done = self.attempt("apply", "-f", "-", *flags, text=self._text(manifest))
        assert done.returncode != 0, f"taken: {done.stdout}"
        return done.stderr

    def within(self, namespace: str) -> "Kubectl":
        """The same cluster, another namespace."""
        return replace(self, namespace=namespace)

    @contextmanager
    def fresh_namespace(self) -> Iterator["Kubectl"]:
        """A namespace for one test; what is in it is gone some seconds after the test."""
        name = f"t-{uuid4().hex[:8]}"
        self.run("create", "namespace", name)
        try:
            yield self.within(name)
        finally:
            self.run("delete", "namespace", name, "--wait=false")

    def _text(self, manifest: str | Path | Mapping[str, Any]) -> str:
        """A manifest in what the cluster serves."""
        if isinstance(manifest, Path):
            manifest = manifest.read_text()
        objects = yaml.safe_load_all(manifest) if isinstance(manifest, str) else [manifest]
        return yaml.safe_dump_all(served.written(one, self.dra) for one in objects)
