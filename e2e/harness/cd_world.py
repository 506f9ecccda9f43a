"""A driver's namespace, users' domains and the daemons that a test plays, on a real API server."""

import contextlib
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import controller
import domains
from apiserver import ApiServer
from controller import Controller
from waiting import until

LABEL = "resource.nvidia.com/computeDomain"
Json = dict[str, Any]


@dataclass
class World:
    """One installation of the driver, and one team that uses it.

    Attributes:
        server: The API server.
        directory: For logs.
        driver: The driver's namespace.
        team: The users' namespace.
        dra: Version of resource.k8s.io that the server has.
    """

    server: ApiServer
    directory: Path
    driver: str
    team: str
    dra: str = "v1"

    @contextlib.contextmanager
    def controlled(self, *flags: str, **more: Any) -> Iterator[Controller]:
        """A controller of this installation."""
        with controller.started(self.server, self.directory, self.driver, *flags, **more) as one:
            yield one

    def create(self, name: str = "ring", template: str = "", **spec: Any) -> Json:
        """Make a domain as a user."""
        body = domains.domain(name, template, **spec)
        made: Json = self.server.create(domains.domains_path(self.team), body)
        return made

    def delete(self, name: str = "ring") -> None:
        """Delete a domain as a user."""
        self.server.call("DELETE", domains.domains_path(self.team, name))

    def domain(self, name: str = "ring") -> Json | None:
        """A domain as stored."""
        return self.get(domains.domains_path(self.team, name))

    def status(self, name: str = "ring") -> Json:
        """Its status; empty while it has none."""
        return (self.domain(name) or {}).get("status") or {}

    def condition(self, kind: str, name: str = "ring") -> tuple[str, str, str]:
        """Status, reason and message of one condition; empty texts while there is none."""
        for each in self.status(name).get("conditions") or ():
            if each["type"] == kind:
                return each["status"], each["reason"], each["message"]
        return "", "", ""

    def abandon(self) -> None:
        """Take the team's domains and templates away by force: later controllers see none."""
        for path in (domains.domains_path(self.team), self.templates(self.team)):
            for each in self.server.call("GET", path)["items"]:
                one = f"{path}/{each['metadata']['name']}"
                with contextlib.suppress(urllib.error.HTTPError):
                    self.server.call("PUT", one, _released(each))
                    self.server.call("DELETE", one)

    def get(self, path: str) -> Json | None:
        """An object; None where there is none."""
        try:
            found: Json = self.server.call("GET", path)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 404:
                    raise
            return None
        return found

    def daemonset_path(self, uid: str) -> str:
        """Of a domain."""
        return f"{self.daemonsets_path()}/computedomain-daemon-{uid}"

    def daemonsets_path(self) -> str:
        """Path of the driver's DaemonSets."""
        return f"/apis/apps/v1/namespaces/{self.driver}/daemonsets"

    def daemon_template_path(self, uid: str) -> str:
        """Of a domain."""
        return f"{self.templates(self.driver)}/computedomain-daemon-{uid}"

    def workload_template_path(self, name: str = "ring-channel") -> str:
        """Of a domain whose template has this name."""
        return f"{self.templates(self.team)}/{name}"

    def templates(self, namespace: str) -> str:
        """Path of a namespace's claim templates."""
        return f"/apis/resource.k8s.io/{self.dra}/namespaces/{namespace}/resourceclaimtemplates"

    def children(self, uid: str, template: str = "ring-channel") -> list[Json]:
        """Those of a domain's three children that are there and stay."""
        paths = (
            self.workload_template_path(template),
            self.daemon_template_path(uid),
            self.daemonset_path(uid),
        )
        found = [each for each in map(self.get, paths) if each is not None]
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    async def formed(self, name: str = "ring") -> str:
        """Wait until a domain has its children and a status; its UID."""
        await until(lambda: self.condition("ChildrenReady", name)[0] == "True")
        found = self.domain(name)
        assert found is not None
        return str(found["metadata"]["uid"])

    def node(self, name: str, uid: str) -> str:
        """A node that the plugin has labelled for a domain; its whole name."""
        full = f"{name}-{self.driver}"
        self.server.create("/api/v1/nodes", {"metadata": {"name": full, "labels": {LABEL: uid}}})
        return full

    def labels(self, node: str) -> Json:
        """A node's labels."""
        found = self.get(f"/api/v1/nodes/{node}")
        assert found is not None
        return dict(found["metadata"].get("labels") or {})

    def pod(self, node: str, uid: str, number: int = 0, **labels: str) -> Json:
        """A daemon's pod on a node, running."""
        name = f"computedomain-daemon-{uid}-{node}-{number}"  # as the DaemonSet's pods begin
        path = f"/api/v1/namespaces/{self.driver}/pods"
        container = {"name": "compute-domain-daemon", "image": "daemon:1"}
        self.server.create(
            path,
            {
                "metadata": {"name": name, "labels": {LABEL: uid, **labels}},
                "spec": {
                    "nodeName": node,
                    "serviceAccountName": "compute-domain-daemon-service-account",
                    "containers": [container],
                },
            },
        )
        status = {
            "phase": "Running",
            "podIP": f"10.4.0.{number + 1}",
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        pod = self.server.call("GET", f"{path}/{name}")
        made: Json = self.server.call("PUT", f"{path}/{name}/status", {**pod, "status": status})
        return made

    def stuck_pod(self, node: str, uid: str, status: Json) -> None:
        """A daemon's pod that was made for a node and does not start."""
        path = f"/api/v1/namespaces/{self.driver}/pods"
        body = {
            "metadata": {"name": f"daemon-{node}", "labels": {LABEL: uid}},
            "spec": {"containers": [{"name": "c", "image": "i"}], **domains.bound_for(node)},
        }
        made = self.server.create(path, body)
        self.server.call("PUT", f"{path}/daemon-{node}/status", {**made, "status": status})

    def remove_pod(self, pod: Json) -> None:
        """A pod that is gone without a word, as after a forced deletion."""
        path = f"/api/v1/namespaces/{self.driver}/pods/{pod['metadata']['name']}"
        self.server.call("DELETE", path, {"gracePeriodSeconds": 0})

    def join(self, uid: str, *entries: Json) -> Json:
        """The daemons' clique with these entries in it."""
        body = domains.clique(uid, *entries)
        path = domains.cliques_path(self.driver, body["metadata"]["name"])
        stored = self.get(path)
        if stored is None:
            made: Json = self.server.create(domains.cliques_path(self.driver), body)
            return made
        put: Json = self.server.call("PUT", path, {**stored, "daemons": list(entries)})
        return put

    def places(self, uid: str) -> dict[str, int]:
        """Who is in the clique, and at which place."""
        name = f"{uid}.{domains.CLIQUE}"
        stored = self.get(domains.cliques_path(self.driver, name)) or {}
        return {each["nodeName"]: each["index"] for each in stored.get("daemons") or ()}

    def events(self, name: str = "ring") -> list[tuple[str, str, str]]:
        """Type, reason and message of the Events on a domain."""
        listed = self.server.call("GET", f"/api/v1/namespaces/{self.team}/events")
        return [
            (each["type"], each["reason"], each["message"])
            for each in listed["items"]
            if each["involvedObject"]["kind"] == "ComputeDomain"
            and each["involvedObject"]["name"] == name
        ]


def _released(obj: Json) -> Json:
    """Without finalizers."""
    return {**obj, "metadata": {**obj["metadata"], "finalizers": []}}
