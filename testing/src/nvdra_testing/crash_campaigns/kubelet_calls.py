# SPDX-License-Identifier: Apache-2.0
"""The kubelet's calls during a campaign, and what their answers and the records must agree in."""

import asyncio

from nvdra_api.resource.claims import ClaimRef

from nvdra_testing.crash_campaigns import node_checks
from nvdra_testing.crash_campaigns.plugin_sandbox import PluginSandbox

FAILING_PREPARE_TIMEOUT_S = 2.0
"""A prepare that must fail is answered in half of this time."""


async def prepare(sandbox: PluginSandbox, claim: ClaimRef) -> bytes:
    """Prepare a claim, which must succeed, and return the whole answer."""
    answer = (await sandbox.dra.prepare([claim]))[claim.uid]
    assert not answer.error, f"prepare: {answer.error}"
    return bytes(answer.SerializeToString(deterministic=True))


async def unprepare(sandbox: PluginSandbox, claim: ClaimRef) -> None:
    """Unprepare a claim, which must succeed."""
    answer = (await sandbox.dra.unprepare([claim]))[claim.uid]
    assert not answer.error, f"unprepare: {answer.error}"


class InterruptedCall:
    """One call for one claim of a sandbox, which a kill may interrupt."""

    def __init__(self, claim: ClaimRef) -> None:
        self.claim = claim
        self.is_answered = False

    async def prepare(self, sandbox: PluginSandbox) -> None:
        """Make the call that prepares the claim, and wait for what follows the answer."""
        await prepare(sandbox, self.claim)
        self.is_answered = True
        await asyncio.sleep(sandbox.tested.settles_s)

    async def unprepare(self, sandbox: PluginSandbox) -> None:
        """Make the call that unprepares the claim, and wait for what follows the answer."""
        await unprepare(sandbox, self.claim)
        self.is_answered = True
        await asyncio.sleep(sandbox.tested.settles_s)

    async def prepare_again(self, sandbox: PluginSandbox) -> str:
        """Make the kubelet's retry of the prepare, and a repetition; describe the first answer."""
        was_held = self.claim.uid in node_checks.records(sandbox)
        assert was_held or not self.is_answered, "what was answered is not on the disk"
        answer = await prepare(sandbox, self.claim)
        assert await prepare(sandbox, self.claim) == answer, "the repeated answer differs"
        return "answered from its record" if was_held else "prepared by the retry"

    async def unprepare_again(self, sandbox: PluginSandbox) -> str:
        """Make the kubelet's retry of the unprepare, and describe its answer."""
        was_held = self.claim.uid in node_checks.records(sandbox)
        assert not was_held or not self.is_answered, "what was answered is not on the disk"
        await unprepare(sandbox, self.claim)
        return "unprepared by the retry" if was_held else "was unprepared, the retry agrees"


async def check_prepared(
    sandbox: PluginSandbox,
    claim: ClaimRef,
    device: str,
    other: ClaimRef,
    timeout_s: float = FAILING_PREPARE_TIMEOUT_S,
) -> None:
    """Check that the claim has the device, and that another claim cannot have it."""
    held = node_checks.records(sandbox)
    assert claim.uid in held, f"records: {held}"
    answers = await sandbox.dra.prepare([other], timeout_s=timeout_s)
    refused = answers[other.uid].error
    holder = f"{claim.namespace}/{claim.name}"
    assert refused.startswith(f"DeviceInUse: {device} is held by claim {holder}"), (
        f"a second claim for {device} was answered: {refused or 'as if it were free'}"
    )
