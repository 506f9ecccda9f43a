# SPDX-License-Identifier: Apache-2.0
"""A node with the ComputeDomain plugin's process; the test is kubelet, scheduler and IMEX daemon.

Claims are like those from the controller's templates, daemon pods like those of the DaemonSet, and
clique entries like those that a daemon writes.
"""

import asyncio
import time
import urllib.error
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from nvdra_api import names
from nvdra_api.resource.claims import ClaimRef

from nvdra_testing import yaml_documents
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.domain_objects import Json
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.node import plugin
from nvdra_testing.node.imex_daemons import DaemonPod, Rack
from nvdra_testing.node.rig import Rig, cdi_names, flatten_spans
from nvdra_testing.polling import WAIT_S

CLIQUE = "6f1c7a52-0d3e-5b8a-9c41-27e5a0d1b672.2"
"""The clique of the simulated profile gb200-nvl72."""
LABEL = names.DOMAIN_LABEL


@dataclass
class DomainRig(Rig):
    """A node with its plugin, and the objects that the controller would create.

    Attributes:
        namespace: The driver's namespace.
        clique: The node's clique.
    """

    driver: str = names.COMPUTE_DOMAIN_DRIVER
    program: str = "nvdra-cd-plugin"
    namespace: str = field(kw_only=True)
    clique: str = CLIQUE

    async def start(self, *flags: str, environ: Mapping[str, str] | None = None) -> None:
        """Start the plugin, and wait until it is registered and ready."""
        await super().start(f"--namespace={self.namespace}", *flags, environ=environ)

    def create_domain(
        self, mode: str = "Single", annotations: Mapping[str, str] | None = None, **spec: Any
    ) -> Json:
        """Create a domain in a new namespace."""
        team = domain_objects.create_namespace(self.server)
        channel = {"resourceClaimTemplate": {"name": "ring-channel"}, "allocationMode": mode}
        body = domain_objects.domain(**{"channel": channel, **spec})
        body["metadata"]["annotations"] = dict(annotations or {})
        created: Json = self.server.create(domain_objects.domains_path(team), body)
        return created

    def create_channel_claim(self, domain: Json, mode: str = "Single", **how: Any) -> ClaimRef:
        """Create a workload's claim, allocated to this node's channel 0."""
        device = how.pop("device", "channel-0")
        return self._create_claim(device, domain, "Channel", {"allocationMode": mode}, **how)

    def create_daemon_claim(
        self,
        domain: Json,
        parameters: Mapping[str, Any] | None = None,
        claim_namespace: str = "",
        claim_annotations: Mapping[str, str] | None = None,
        **pod: Any,
    ) -> ClaimRef:
        """Create a daemon pod on this node, and its claim."""
        metadata = self.create_daemon_pod(domain, **pod)["metadata"]
        how = {
            "pod": metadata["name"],
            "pod_uid": metadata["uid"],
            "namespace": claim_namespace or self.namespace,
            "parameters": parameters or {},
            "annotations": claim_annotations,
        }
        return self._create_claim("daemon-0", domain, "Daemon", {}, **how)

    def create_daemon_pod(
        self, domain: Json, spec: Mapping[str, Any] | None = None, **metadata: Any
    ) -> Json:
        """Create a pod on this node like those of the domain's DaemonSet."""
        uid = domain["metadata"]["uid"]
        owner = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "name": names.daemon_name(uid),
            "uid": str(uuid4()),
            "controller": True,
        }
        body = {
            "metadata": {
                "name": f"daemon-{uuid4().hex[:8]}",
                "labels": {LABEL: uid},
                "ownerReferences": [owner],
                **metadata,
            },
            "spec": {
                "nodeName": self.node.name,
                "containers": [{"name": "c", "image": "i"}],
                **(spec or {}),
            },
        }
        created: Json = self.server.create(f"/api/v1/namespaces/{self.namespace}/pods", body)
        return created

    def create_daemonset(self, domain: Json) -> Json:
        """Create the domain's DaemonSet. Nothing creates its pods here."""
        labels = {LABEL: domain["metadata"]["uid"]}
        body = {
            "metadata": {"name": names.daemon_name(labels[LABEL]), "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": labels},
                },
            },
        }
        path = f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets"
        created: Json = self.server.create(path, body)
        return created

    def write_failed_create_event(self, daemonset: Json, message: str) -> None:
        """Write the event of the DaemonSet controller when the API server rejects its pod."""
        metadata = daemonset["metadata"]
        body = {
            "metadata": {"generateName": f"{metadata['name']}."},
            "involvedObject": {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": "Warning",
            "reason": "FailedCreate",
            "message": f"Error creating: {message}",
            "source": {"component": "daemonset-controller"},
            "lastTimestamp": "2026-01-01T00:00:09Z",
        }
        self.server.create(f"/api/v1/namespaces/{metadata['namespace']}/events", body)

    def write_pod_status(self, pod: Json, status: Json) -> None:
        """Write the status of a pod that does not run, as the scheduler or the kubelet would."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
        self.server.request("PUT", path, {**pod, "status": status})

    def write_clique_entry(
        self, domain: Json, status: str = "Ready", node: str = "", **more: Any
    ) -> None:
        """Write a daemon's entry into the domain's clique, as that daemon would."""
        uid = domain["metadata"]["uid"]
        entry = {"nodeName": node or self.node.name, "ipAddress": "10.0.0.1", "index": 0}
        entry = {**entry, "cliqueID": self.clique, "status": status, **more}
        path = domain_objects.cliques_path(self.namespace)
        name = f"{uid}.{self.clique}"
        try:
            stored = self.server.request("GET", f"{path}/{name}")
        except urllib.error.HTTPError:
            made = domain_objects.clique(uid, entry, clique_id=self.clique)
            self.server.create(path, made)
            return
        others = [e for e in stored["daemons"] if e["nodeName"] != entry["nodeName"]]
        self.server.request("PUT", f"{path}/{name}", {**stored, "daemons": [*others, entry]})

    def pod_uid(self, claim: ClaimRef) -> str:
        """The UID of the pod that a claim is reserved for."""
        return str(self._consumer(claim)["uid"])

    def write_pod_ip(self, daemon: ClaimRef, ip: str) -> None:
        """Write the address of a daemon claim's pod, as the kubelet would."""
        self.write_daemon_status(daemon, {"podIP": ip})

    def write_daemon_status(self, daemon: ClaimRef, status: Json) -> None:
        """Write the status of a daemon claim's pod, as the kubelet would."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self._consumer(daemon)['name']}"
        self.write_pod_status(self.server.request("GET", path), status)

    def _consumer(self, claim: ClaimRef) -> Json:
        path = f"{plugin.claims_path(claim.namespace)}/{claim.name}"
        user: Json = self.server.request("GET", path)["status"]["reservedFor"][0]
        return user

    def remove_imex_capability(self) -> None:
        """Remove the capability to manage IMEX, as on a kernel module without IMEX."""
        (self.node.roots.proc / "driver/nvidia/capabilities/fabric-imex-mgmt").unlink()

    def node_label(self) -> str:
        """The domain in the node's label; empty if it has none."""
        labels = self.node_object()["metadata"].get("labels") or {}
        return str(labels.get(LABEL, ""))

    def node_object(self) -> Json:
        """The Node object in the API server."""
        found: Json = self.server.request("GET", f"/api/v1/nodes/{self.node.name}")
        return found

    def set_node_label(self, value: str | None) -> None:
        """Change the node's label, as an administrator would."""
        node = self.node_object()
        labels = node["metadata"].setdefault("labels", {})
        labels.pop(LABEL, None)
        if value:
            labels[LABEL] = value
        self.server.request("PUT", f"/api/v1/nodes/{self.node.name}", node)

    async def prepare(self, claim: ClaimRef, timeout_s: float = 45.0) -> Any:
        """Prepare one claim, and return the plugin's answer."""
        return (await self.dra.prepare([claim], timeout_s=timeout_s))[claim.uid]

    async def refusal(self, claim: ClaimRef, timeout_s: float = kubelet_client.SHORT_S) -> str:
        """Why one claim is not prepared in a short time; a call that was too slow is repeated."""
        return await self.dra.refusal(claim, timeout_s)

    def start_prepare(self, claim: ClaimRef) -> "asyncio.Task[Any]":
        """Start to prepare a claim, while the test does what the claim waits for."""
        return asyncio.create_task(self.prepare(claim))

    async def unprepare(self, claim: ClaimRef, timeout_s: float = 45.0) -> str:
        """Unprepare one claim, and return the error; empty on success."""
        return str((await self.dra.unprepare([claim], timeout_s=timeout_s))[claim.uid].error)

    async def make_daemon_ready(self, domain: Json) -> ClaimRef:
        """Prepare a daemon claim, write a Ready entry for it, and return the claim."""
        claim = self.create_daemon_claim(domain)
        answer = await self.prepare(claim)
        assert not answer.error, answer.error
        self.write_clique_entry(domain, podUID=self.pod_uid(claim))
        return claim

    def domain_directory(self, domain: Json) -> Path:
        """The directory of a domain on this node, which the plugin mounts into the daemon."""
        return self.plugin_dir / "domains" / str(domain["metadata"]["uid"])

    def create_rack(self, domain: Json, directory: Path) -> Rack:
        """A rack of this node alone, whose daemons have what the plugin has given to their claim.

        A daemon's claim must be prepared. `directory` is for other files of the daemons.
        """
        given = self.domain_directory(domain)
        # A pod has one address of its own; here all processes share a network.
        own_address = "BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}\n"
        template = (given / "imexd.cfg.tmpl").read_text()
        template = template.replace("\nBIND_INTERFACE_IP=\n", f"\n{own_address}")
        assert f"\n{own_address}" in template
        rack = Rack(
            self.server,
            directory,
            domain,
            self.namespace,
            self.stack,
            template=template,
            clique_id=self.clique,
            imexd=given,
        )
        rack.install_driver(self.node.name)
        return rack

    def run_daemon(self, rack: Rack, daemon: ClaimRef) -> DaemonPod:
        """Start the container of a daemon claim's pod, for the first time or again.

        It is in the clique that the claim's CDI spec says.
        """
        pod, given = self._consumer(daemon), self.claim_environment(daemon)
        clique = given["CLIQUE_ID"]
        return rack.run_daemon(self.node.name, pod["name"], pod["uid"], clique=clique)

    def domain_span_names(self, domain: Json) -> list[str]:
        """The names of the spans that this plugin's process has written into the domain's trace."""
        uid = domain["metadata"]["uid"]
        if self.process.get(f"/debug/traces/{uid}", debug=True)[0] == 404:
            return []
        return sorted(span["name"] for span in flatten_spans(self.process.trace(uid)["spans"]))

    def write_status_nodes(self, domain: Json, *nodes: Json) -> None:
        """Write nodes into the domain's status, as daemons without cliques do."""
        metadata = domain["metadata"]
        path = domain_objects.domains_path(metadata["namespace"], metadata["name"])
        stored = self.server.request("GET", path)
        self.server.request("PUT", f"{path}/status", {**stored, "status": {"nodes": list(nodes)}})

    def status_node(self, ip: str, status: str = "Ready", node: str = "", index: int = 0) -> Json:
        """A node in a domain's status."""
        return {
            "name": node or self.node.name,
            "ipAddress": ip,
            "cliqueID": self.clique,
            "index": index if self.clique else -1,
            "status": status,
        }

    def claim_cdi_spec(self, claim: ClaimRef) -> Json:
        """The claim's CDI spec; empty if there is none."""
        path = self.node.cdi / f"k8s.compute-domain.nvidia.com-claim_{claim.uid}.yaml"
        found: Json = yaml_documents.load(path.read_text()) if path.exists() else {}
        return found

    def claim_environment(self, claim: ClaimRef) -> dict[str, str]:
        """The variables that the claim's own CDI spec sets."""
        (device,) = self.claim_cdi_spec(claim)["devices"]
        return dict(each.split("=", 1) for each in device["containerEdits"]["env"])

    async def poll_until(
        self, is_so: Callable[[], Any], what: str, timeout_s: float = WAIT_S
    ) -> None:
        """Wait for a condition, checking it on a thread so that calls to the plugin go on."""
        deadline = time.monotonic() + timeout_s
        while not await asyncio.to_thread(is_so):
            assert time.monotonic() < deadline, f"waited for {what}: {self.log_tail()}"
            await asyncio.sleep(0.02)

    def log_tail(self) -> str:
        """The end of the plugin's log."""
        return self.process.log.read_text()[-3000:]

    def _create_claim(
        self,
        device: str | tuple[str, ...],
        domain: Json,
        kind: str,
        more: Mapping[str, Any],
        **how: Any,
    ) -> ClaimRef:
        parameters = {
            "apiVersion": names.NVIDIA_API_VERSION,
            "kind": f"ComputeDomain{kind}Config",
            "domainID": domain["metadata"]["uid"],
            **more,
            **how.pop("parameters", {}),
        }
        config = [plugin.opaque_config(parameters, driver=self.driver)]
        how = {"namespace": domain["metadata"]["namespace"], **how}
        if how.get("annotations") is None:
            how["annotations"] = domain_objects.claim_annotations(domain)
        devices = [device] if isinstance(device, str) else list(device)
        return plugin.create_allocated_claim(
            self.server, self.node.name, devices, config=config, driver=self.driver, **how
        )


__all__ = ["CLIQUE", "LABEL", "DomainRig", "cdi_names"]
