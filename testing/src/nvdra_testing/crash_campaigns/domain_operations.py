# SPDX-License-Identifier: Apache-2.0
"""The operations of the ComputeDomain plugin that a campaign interrupts.

The node has a domain. Where a channel is concerned, the domain's daemon is prepared, and its entry
in the clique says that it is ready.
"""

import asyncio
from contextlib import ExitStack

from nvdra_api.resource.claims import ClaimRef

from nvdra_testing.control_plane.domain_objects import Json
from nvdra_testing.crash_campaigns import kubelet_calls, node_checks
from nvdra_testing.crash_campaigns.kubelet_calls import InterruptedCall
from nvdra_testing.crash_campaigns.plugin_operations import Operation
from nvdra_testing.crash_campaigns.plugin_sandbox import PluginSandbox
from nvdra_testing.node.domain_rig import DomainRig

CHANNEL, DAEMON = "channel-0", "daemon-0"
FAILING_PREPARE_TIMEOUT_S = 4.0
"""A prepare that must fail asks the API server several times before."""


class DomainNode:
    """One sandbox's node, and its objects in the API server.

    Attributes:
        call: The call that is interrupted.
        daemon: The claim of the domain's daemon; None where it is the one of the call.
    """

    call: InterruptedCall

    def __init__(self, sandbox: PluginSandbox, namespace: str) -> None:
        self.sandbox = sandbox
        self.rig = DomainRig(
            sandbox.server, sandbox.node, sandbox.kubelet, ExitStack(), namespace=namespace
        )
        self.domain: Json = self.rig.create_domain()
        self.daemon: ClaimRef | None = None

    async def make_daemon_ready(self) -> None:
        """Prepare a daemon of the domain, and let it say that it is ready."""
        self.daemon = self.rig.create_daemon_claim(self.domain)
        await kubelet_calls.prepare(self.sandbox, self.daemon)
        self.rig.write_clique_entry(self.domain, podUID=self.rig.pod_uid(self.daemon))

    def label(self, *, is_member: bool) -> None:
        """Set the node's label, or remove it."""
        self.rig.set_node_label(self.domain["metadata"]["uid"] if is_member else None)

    def check_order(self) -> None:
        """Check that label and channels have a record, without which nobody takes them away."""
        uid = self.call.claim.uid
        is_recorded = uid in node_checks.records(self.sandbox)
        is_named = any(uid in path.name for path in self.sandbox.node.cdi.glob("*.yaml"))
        assert is_recorded or not is_named, "a CDI spec of a claim that has no record"
        assert is_recorded or not self.rig.node_label(), "a label for a claim that has no record"

    async def check_left(self) -> str:
        """Unprepare the daemon, and check that nothing is left on the node or of its label."""
        assert not self.rig.node_label(), f"the node is labelled: {self.rig.node_label()}"
        if self.daemon is not None:
            await kubelet_calls.unprepare(self.sandbox, self.daemon)
        await node_checks.check_nothing_left(self.sandbox)
        await node_checks.check_stop(self.sandbox)
        return "nothing left"


class DomainOperation(Operation):
    """What the operations have in common."""

    is_start = False

    def __init__(self, namespace: str) -> None:
        """Create it; `namespace` is the driver's."""
        self._namespace = namespace
        self._nodes: dict[PluginSandbox, DomainNode] = {}

    async def prepare_sandbox(self, sandbox: PluginSandbox) -> None:
        node = self._nodes[sandbox] = DomainNode(sandbox, self._namespace)
        await sandbox.start()
        # The base spec with the driver's files stays when the daemon's claim is gone.
        daemon = node.rig.create_daemon_claim(node.domain)
        await kubelet_calls.prepare(sandbox, daemon)
        await kubelet_calls.unprepare(sandbox, daemon)
        sandbox.specs = node_checks.cdi_specs(sandbox)
        await self._prepare_claims(node)
        await sandbox.stop()
        sandbox.save_files(self.name)

    async def arrange(self, sandbox: PluginSandbox) -> None:
        node = self._nodes[sandbox]
        sandbox.restore_files(self.name)
        await asyncio.to_thread(self._arrange_objects, node)
        await sandbox.start()

    async def _prepare_claims(self, node: DomainNode) -> None:
        """Prepare the claims that are prepared before the operation."""

    def _arrange_objects(self, node: DomainNode) -> None:
        """Create the claim of the call, and set the node's label."""


class UnprepareOperation(DomainOperation):
    """What the unprepares have in common."""

    async def perform(self, sandbox: PluginSandbox) -> None:
        await self._nodes[sandbox].call.unprepare(sandbox)

    def check_interrupted(self, sandbox: PluginSandbox) -> None:
        self._nodes[sandbox].check_order()

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        node = self._nodes[sandbox]
        retried = await node.call.unprepare_again(sandbox)
        return f"{retried}; " + await node.check_left()


class PrepareChannel(DomainOperation):
    """A workload's claim: record, label, channels, record."""

    name = "prepare channel"

    async def _prepare_claims(self, node: DomainNode) -> None:
        await node.make_daemon_ready()

    def _arrange_objects(self, node: DomainNode) -> None:
        node.label(is_member=False)
        node.call = InterruptedCall(node.rig.create_channel_claim(node.domain))

    async def perform(self, sandbox: PluginSandbox) -> None:
        await self._nodes[sandbox].call.prepare(sandbox)

    def check_interrupted(self, sandbox: PluginSandbox) -> None:
        self._nodes[sandbox].check_order()

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        node = self._nodes[sandbox]
        retried = await node.call.prepare_again(sandbox)
        claim = node.call.claim
        assert node.rig.node_label() == node.domain["metadata"]["uid"], "the node has no label"
        assert node.rig.claim_cdi_spec(claim), "there is no CDI spec"
        other = await asyncio.to_thread(node.rig.create_channel_claim, node.domain)
        await kubelet_calls.check_prepared(
            sandbox, claim, CHANNEL, other, FAILING_PREPARE_TIMEOUT_S
        )
        await kubelet_calls.unprepare(sandbox, claim)
        return f"{retried}; " + await node.check_left()


class UnprepareChannel(UnprepareOperation):
    """The domain's last claim on the node: label, channels, record."""

    name = "unprepare channel"

    async def _prepare_claims(self, node: DomainNode) -> None:
        await node.make_daemon_ready()
        node.call = InterruptedCall(node.rig.create_channel_claim(node.domain))
        await kubelet_calls.prepare(node.sandbox, node.call.claim)

    def _arrange_objects(self, node: DomainNode) -> None:
        node.label(is_member=True)
        node.call = InterruptedCall(node.call.claim)


class PrepareDaemon(DomainOperation):
    """The first claim of a domain's daemon: directory, template, both CDI specs, record."""

    name = "prepare daemon"

    def _arrange_objects(self, node: DomainNode) -> None:
        node.call = InterruptedCall(node.rig.create_daemon_claim(node.domain))

    async def arrange(self, sandbox: PluginSandbox) -> None:
        await super().arrange(sandbox)
        for spec in sandbox.node.cdi.iterdir():
            spec.unlink()

    async def perform(self, sandbox: PluginSandbox) -> None:
        await self._nodes[sandbox].call.prepare(sandbox)

    async def check_recovery(self, sandbox: PluginSandbox) -> str:
        node = self._nodes[sandbox]
        retried = await node.call.prepare_again(sandbox)
        claim = node.call.claim
        assert (node.rig.domain_directory(node.domain) / "imexd.cfg.tmpl").exists()
        assert node.rig.claim_cdi_spec(claim), "there is no CDI spec"
        other = await asyncio.to_thread(node.rig.create_daemon_claim, node.domain)
        await kubelet_calls.check_prepared(sandbox, claim, DAEMON, other, FAILING_PREPARE_TIMEOUT_S)
        await kubelet_calls.unprepare(sandbox, claim)
        return f"{retried}; " + await node.check_left()


class UnprepareDaemon(UnprepareOperation):
    """The claim of a daemon that has ended: CDI spec, record."""

    name = "unprepare daemon"

    async def _prepare_claims(self, node: DomainNode) -> None:
        node.call = InterruptedCall(node.rig.create_daemon_claim(node.domain))
        await kubelet_calls.prepare(node.sandbox, node.call.claim)

    def _arrange_objects(self, node: DomainNode) -> None:
        node.call = InterruptedCall(node.call.claim)
