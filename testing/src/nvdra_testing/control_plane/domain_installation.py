# SPDX-License-Identifier: Apache-2.0
"""An installation of the driver on a real API server, with users' domains and simulated daemons."""

import contextlib
import urllib.error
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvdra_testing.control_plane import controller, domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.controller import ControllerProcess
from nvdra_testing.polling import wait_until

LABEL = "resource.nvidia.com/computeDomain"
Json = dict[str, Any]


@dataclass
class DriverInstallation:
    """One installation of the driver, and one team that uses it.

    Attributes:
        server: The API server.
        directory: For logs.
        driver_namespace: The driver's namespace.
        user_namespace: The users' namespace.
        resource_api_version: The version of resource.k8s.io that the server serves.
    """

    server: ApiServer
    directory: Path
    driver_namespace: str
    user_namespace: str
    resource_api_version: str = "v1"

    @contextlib.contextmanager
    def run_controller(self, *flags: str, **more: Any) -> Iterator[ControllerProcess]:
        """Run a controller of this installation."""
        with controller.run_controller(
            self.server, self.directory, self.driver_namespace, *flags, **more
        ) as one:
            yield one

    def create_domain(self, name: str = "ring", template: str = "", **spec: Any) -> Json:
        """Create a domain as a user."""
        body = domain_objects.domain(name, template, **spec)
        made: Json = self.server.create(domain_objects.domains_path(self.user_namespace), body)
        return made

    def delete_domain(self, name: str = "ring") -> None:
        """Delete a domain as a user."""
        self.server.request("DELETE", domain_objects.domains_path(self.user_namespace, name))

    def domain(self, name: str = "ring") -> Json | None:
        """A domain as stored; None if there is none."""
        return self.get(domain_objects.domains_path(self.user_namespace, name))

    def status(self, name: str = "ring") -> Json:
        """The status of a domain; empty while it has none."""
        return (self.domain(name) or {}).get("status") or {}

    def condition(self, kind: str, name: str = "ring") -> tuple[str, str, str]:
        """The status, reason and message of a condition; empty strings if there is none."""
        for each in self.status(name).get("conditions") or ():
            if each["type"] == kind:
                return each["status"], each["reason"], each["message"]
        return "", "", ""

    def remove_domains_by_force(self) -> None:
        """Remove the team's domains and templates together with their finalizers."""
        for path in (
            domain_objects.domains_path(self.user_namespace),
            self.templates_path(self.user_namespace),
        ):
            for each in self.server.request("GET", path)["items"]:
                domain_objects.remove_by_force(self.server, path, each)

    def get(self, path: str) -> Json | None:
        """An object; None if it does not exist."""
        try:
            found: Json = self.server.request("GET", path)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 404:
                    raise
            return None
        return found

    def daemonset_path(self, uid: str) -> str:
        """The path of a domain's DaemonSet."""
        return f"{self.daemonsets_path()}/computedomain-daemon-{uid}"

    def daemonsets_path(self) -> str:
        """The path of the driver's DaemonSets."""
        return f"/apis/apps/v1/namespaces/{self.driver_namespace}/daemonsets"

    def network_policy_path(self, uid: str) -> str:
        """The path of the NetworkPolicy of a domain's daemons."""
        return f"{self.network_policies_path()}/computedomain-daemon-{uid}"

    def network_policies_path(self) -> str:
        """The path of the NetworkPolicies in the driver's namespace."""
        return f"/apis/networking.k8s.io/v1/namespaces/{self.driver_namespace}/networkpolicies"

    def daemon_template_path(self, uid: str) -> str:
        """The path of a domain's daemon claim template."""
        return f"{self.templates_path(self.driver_namespace)}/computedomain-daemon-{uid}"

    def workload_template_path(self, name: str = "ring-channel") -> str:
        """The path of a domain's workload claim template."""
        return f"{self.templates_path(self.user_namespace)}/{name}"

    def templates_path(self, namespace: str) -> str:
        """The path of a namespace's claim templates."""
        api = f"/apis/resource.k8s.io/{self.resource_api_version}"
        return f"{api}/namespaces/{namespace}/resourceclaimtemplates"

    def children(self, uid: str, template: str = "ring-channel") -> list[Json]:
        """The domain's children that exist and are not being deleted."""
        paths = (
            self.workload_template_path(template),
            self.daemon_template_path(uid),
            self.daemonset_path(uid),
        )
        found = [each for each in map(self.get, paths) if each is not None]
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    async def wait_children_ready(self, name: str = "ring") -> str:
        """Wait until a domain has its children and a status, and return its UID."""
        await wait_until(lambda: self.condition("ChildrenReady", name)[0] == "True")
        found = self.domain(name)
        assert found is not None
        return str(found["metadata"]["uid"])

    def create_labelled_node(self, name: str, uid: str) -> str:
        """Create a node with a domain's label, and return its full name."""
        full = f"{name}-{self.driver_namespace}"
        self.server.create("/api/v1/nodes", {"metadata": {"name": full, "labels": {LABEL: uid}}})
        return full

    def node_labels(self, node: str) -> Json:
        """The labels of a node."""
        found = self.get(f"/api/v1/nodes/{node}")
        assert found is not None
        return dict(found["metadata"].get("labels") or {})

    def create_running_daemon_pod(
        self, node: str, uid: str, number: int = 0, **labels: str
    ) -> Json:
        """Create a running daemon pod on a node."""
        name = (
            f"computedomain-daemon-{uid}-{node}-{number}"  # like the names of the DaemonSet's pods
        )
        path = f"/api/v1/namespaces/{self.driver_namespace}/pods"
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
        pod = self.server.request("GET", f"{path}/{name}")
        made: Json = self.server.request("PUT", f"{path}/{name}/status", {**pod, "status": status})
        return made

    def annotate_pod(self, pod: Json, annotations: Mapping[str, str]) -> None:
        """Give a pod these annotations, and no others."""
        path = f"/api/v1/namespaces/{self.driver_namespace}/pods/{pod['metadata']['name']}"
        stored = self.server.request("GET", path)
        metadata = {**stored["metadata"], "annotations": dict(annotations)}
        self.server.request("PUT", path, {**stored, "metadata": metadata})

    def create_pending_daemon_pod(self, node: str, uid: str, status: Json) -> None:
        """Create a daemon pod for a node that does not start."""
        path = f"/api/v1/namespaces/{self.driver_namespace}/pods"
        body = {
            "metadata": {"name": f"daemon-{node}", "labels": {LABEL: uid}},
            "spec": {
                "containers": [{"name": "c", "image": "i"}],
                **domain_objects.daemonset_pod_spec(node),
            },
        }
        made = self.server.create(path, body)
        self.server.request("PUT", f"{path}/daemon-{node}/status", {**made, "status": status})

    def remove_pod(self, pod: Json) -> None:
        """Remove a pod without a grace period."""
        path = f"/api/v1/namespaces/{self.driver_namespace}/pods/{pod['metadata']['name']}"
        self.server.request("DELETE", path, {"gracePeriodSeconds": 0})

    def write_clique_entries(self, uid: str, *entries: Json) -> Json:
        """Write the clique of a domain with these entries."""
        body = domain_objects.clique(uid, *entries)
        path = domain_objects.cliques_path(self.driver_namespace, body["metadata"]["name"])
        stored = self.get(path)
        if stored is None:
            made: Json = self.server.create(
                domain_objects.cliques_path(self.driver_namespace), body
            )
            return made
        put: Json = self.server.request("PUT", path, {**stored, "daemons": list(entries)})
        return put

    def clique_indexes(self, uid: str) -> dict[str, int]:
        """Node → its index in the clique."""
        name = f"{uid}.{domain_objects.CLIQUE}"
        stored = self.get(domain_objects.cliques_path(self.driver_namespace, name)) or {}
        return {each["nodeName"]: each["index"] for each in stored.get("daemons") or ()}

    def events(self, name: str = "ring") -> list[tuple[str, str, str]]:
        """The type, reason and message of the events on a domain."""
        listed = self.server.request("GET", f"/api/v1/namespaces/{self.user_namespace}/events")
        return [
            (each["type"], each["reason"], each["message"])
            for each in listed["items"]
            if each["involvedObject"]["kind"] == "ComputeDomain"
            and each["involvedObject"]["name"] == name
        ]
