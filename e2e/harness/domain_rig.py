"""One node of a ComputeDomain, the plugin's process on it, the test as kubelet, scheduler, daemon.

Claims are as the controller's templates make them, pods of daemons as the DaemonSet's; the clique's
entries are what a daemon would write.
"""

import asyncio
import time
import urllib.error
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import domains
import plugin
import yaml
from domains import Json
from nvdra_api.types import names
from nvdra_api.types.claims import ClaimRef
from rig import Rig, cdi_names, flat

CLIQUE = "6f1c7a52-0d3e-5b8a-9c41-27e5a0d1b672.2"
"""Of the simulated profile gb200-nvl72."""
LABEL = names.DOMAIN_LABEL


@dataclass
class DomainRig(Rig):
    """As the kubelet meets the plugin; with what the controller would have made.

    Attributes:
        namespace: The driver's.
        clique: The node's.
    """

    driver: str = names.COMPUTE_DOMAIN_DRIVER
    program: str = "nvdra-cd-plugin"
    namespace: str = field(kw_only=True)
    clique: str = CLIQUE

    async def start(self, *flags: str, environ: Mapping[str, str] | None = None) -> None:
        """Start the plugin and wait until it is registered and ready."""
        await super().start(f"--namespace={self.namespace}", *flags, environ=environ)

    def domain(self, mode: str = "Single", **spec: Any) -> Json:
        """A domain of a namespace of its own."""
        team = domains.namespace(self.server)
        channel = {"resourceClaimTemplate": {"name": "ring-channel"}, "allocationMode": mode}
        return self.server.create(
            domains.domains_path(team), domains.domain(**{"channel": channel, **spec})
        )

    def channel(self, domain: Json, mode: str = "Single", **how: Any) -> ClaimRef:
        """A workload's claim, allocated to this node's channel 0."""
        device = how.pop("device", "channel-0")
        return self._claim(device, domain, "Channel", {"allocationMode": mode}, **how)

    def daemon(
        self,
        domain: Json,
        parameters: Mapping[str, Any] | None = None,
        claim_namespace: str = "",
        **pod: Any,
    ) -> ClaimRef:
        """A pod as the domain's DaemonSet makes it on this node, and its claim."""
        metadata = self.daemon_pod(domain, **pod)["metadata"]
        how = {
            "pod": metadata["name"],
            "pod_uid": metadata["uid"],
            "namespace": claim_namespace or self.namespace,
            "parameters": parameters or {},
        }
        return self._claim("daemon-0", domain, "Daemon", {}, **how)

    def daemon_pod(
        self, domain: Json, spec: Mapping[str, Any] | None = None, **metadata: Any
    ) -> Json:
        """A pod as the domain's DaemonSet makes it on this node."""
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
        return self.server.create(f"/api/v1/namespaces/{self.namespace}/pods", body)

    def daemonset(self, domain: Json) -> Json:
        """The domain's DaemonSet, as its controller makes it; nobody here makes its pods."""
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
        return self.server.create(f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets", body)

    def pod_is_refused(self, daemonset: Json, message: str) -> None:
        """What the DaemonSet controller writes when the API server does not take its pod."""
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

    def pod_says(self, pod: Json, status: Json) -> None:
        """Write the status of a pod that does not run, as scheduler or kubelet would."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
        self.server.call("PUT", path, {**pod, "status": status})

    def say(self, domain: Json, status: str = "Ready", node: str = "", **more: Any) -> None:
        """Write a daemon's entry into the domain's clique, as that daemon would."""
        uid = domain["metadata"]["uid"]
        entry = {"nodeName": node or self.node.name, "ipAddress": "10.0.0.1", "index": 0}
        entry = {**entry, "cliqueID": self.clique, "status": status, **more}
        path = domains.cliques_path(self.namespace)
        name = f"{uid}.{self.clique}"
        try:
            stored = self.server.call("GET", f"{path}/{name}")
        except urllib.error.HTTPError:
            made = domains.clique(uid, entry, clique_id=self.clique)
            self.server.create(path, made)
            return
        others = [e for e in stored["daemons"] if e["nodeName"] != entry["nodeName"]]
        self.server.call("PUT", f"{path}/{name}", {**stored, "daemons": [*others, entry]})

    def pod_of(self, claim: ClaimRef) -> str:
        """UID of the pod that a claim is reserved for."""
        return str(self._user(claim)["uid"])

    def run_at(self, daemon: ClaimRef, ip: str) -> None:
        """Let the pod of a daemon's claim run at this address, as the kubelet would tell."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self._user(daemon)['name']}"
        pod = self.server.call("GET", path)
        self.server.call("PUT", f"{path}/status", {**pod, "status": {"podIP": ip}})

    def _user(self, claim: ClaimRef) -> Json:
        path = f"{plugin.claims_path(claim.namespace)}/{claim.name}"
        user: Json = self.server.call("GET", path)["status"]["reservedFor"][0]
        return user

    def forbid_imex(self) -> None:
        """Let the kernel module give nobody the right to manage IMEX, as one without IMEX does."""
        (self.node.roots.proc / "driver/nvidia/capabilities/fabric-imex-mgmt").unlink()

    def label(self) -> str:
        """The domain that the node is labelled for; empty for none."""
        labels = self.node_object()["metadata"].get("labels") or {}
        return str(labels.get(LABEL, ""))

    def node_object(self) -> Json:
        """The Node, as the API server has it."""
        found: Json = self.server.call("GET", f"/api/v1/nodes/{self.node.name}")
        return found

    def relabel(self, value: str | None) -> None:
        """Change the node's label as an administrator would."""
        node = self.node_object()
        labels = node["metadata"].setdefault("labels", {})
        labels.pop(LABEL, None)
        if value:
            labels[LABEL] = value
        self.server.call("PUT", f"/api/v1/nodes/{self.node.name}", node)

    async def prepare(self, claim: ClaimRef, timeout_s: float = 45.0) -> Any:
        """The plugin's answer for one claim."""
        return (await self.dra.prepare([claim], timeout_s=timeout_s))[claim.uid]

    def begin(self, claim: ClaimRef) -> "asyncio.Task[Any]":
        """Prepare a claim while the test does what the claim waits for."""
        return asyncio.create_task(self.prepare(claim))

    async def unprepare(self, claim: ClaimRef, timeout_s: float = 45.0) -> str:
        """What the plugin says to the claim's end; empty when it is over."""
        return str((await self.dra.unprepare([claim], timeout_s=timeout_s))[claim.uid].error)

    async def form(self, domain: Json) -> ClaimRef:
        """Have a daemon of the domain ready on this node; its claim."""
        claim = self.daemon(domain)
        answer = await self.prepare(claim)
        assert not answer.error, answer.error
        self.say(domain, podUID=self.pod_of(claim))
        return claim

    def told(self, domain: Json) -> list[str]:
        """Names of the spans that the plugin's process has written into the domain's trace."""
        uid = domain["metadata"]["uid"]
        if self.process.get(f"/debug/traces/{uid}", debug=True)[0] == 404:
            return []
        return sorted(span["name"] for span in flat(self.process.trace(uid)["spans"]))

    def say_in_status(self, domain: Json, *nodes: Json) -> None:
        """Write members into the domain's status, as daemons without cliques do."""
        metadata = domain["metadata"]
        path = domains.domains_path(metadata["namespace"], metadata["name"])
        stored = self.server.call("GET", path)
        self.server.call("PUT", f"{path}/status", {**stored, "status": {"nodes": list(nodes)}})

    def member(self, ip: str, status: str = "Ready", node: str = "", index: int = 0) -> Json:
        """A node in a domain's status."""
        return {
            "name": node or self.node.name,
            "ipAddress": ip,
            "cliqueID": self.clique,
            "index": index if self.clique else -1,
            "status": status,
        }

    def spec(self, claim: ClaimRef) -> Json:
        """The claim's CDI spec; empty where there is none."""
        path = self.node.cdi / f"k8s.compute-domain.nvidia.com-claim_{claim.uid}.yaml"
        found: Json = yaml.safe_load(path.read_text()) if path.exists() else {}
        return found

    async def soon(self, is_so: Callable[[], Any], what: str, timeout_s: float = 20) -> None:
        """Wait for something without keeping the plugin's calls from going on."""
        deadline = time.monotonic() + timeout_s
        while not await asyncio.to_thread(is_so):
            assert time.monotonic() < deadline, f"waited for {what}: {self.log()}"
            await asyncio.sleep(0.02)

    def log(self) -> str:
        """The end of the plugin's log."""
        return self.process.log.read_text()[-3000:]

    def _claim(
        self,
        device: str | tuple[str, ...],
        domain: Json,
        kind: str,
        more: Mapping[str, Any],
        **how: Any,
    ) -> ClaimRef:
        parameters = {
            "apiVersion": names.CONFIG_API_VERSION,
            "kind": f"ComputeDomain{kind}Config",
            "domainID": domain["metadata"]["uid"],
            **more,
            **how.pop("parameters", {}),
        }
        config = [plugin.opaque(parameters, driver=self.driver)]
        how = {"namespace": domain["metadata"]["namespace"], **how}
        devices = [device] if isinstance(device, str) else list(device)
        return plugin.allocated_claim(
            self.server, self.node.name, devices, config=config, driver=self.driver, **how
        )


__all__ = ["CLIQUE", "LABEL", "DomainRig", "cdi_names"]
