"""Giving a workload its channels, once the node's own daemon is ready, or the host's IMEX.

Source: spec/compute-domain.md §7.7.1, §7.8, §14.3 (KW-52).
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Final

from nvdra_api.protocol import backoff
from nvdra_api.protocol.backoff import Backoff
from nvdra_api.runtime.plugin.turns import Tell, Turns
from nvdra_api.runtime.telemetry.traces import Telemetry
from nvdra_api.types import keys
from nvdra_api.types.errors import DriverError, Reason, RetryableError
from nvdra_api.types.ids import CliqueID

from nvdra_cd_plugin import edits, membership
from nvdra_cd_plugin.cdi_specs import SpecFiles
from nvdra_cd_plugin.daemon_watch import DaemonWatch
from nvdra_cd_plugin.disk import Disk
from nvdra_cd_plugin.edits import Place
from nvdra_cd_plugin.fabric_watch import FabricWatch
from nvdra_cd_plugin.host_imex import HostImex
from nvdra_cd_plugin.joining import Membership
from nvdra_cd_plugin.membership import Domain
from nvdra_cd_plugin.node_devices import NodeDevices
from nvdra_cd_plugin.records import DomainHolding
from nvdra_cd_plugin.story import Story

_ASK: Final = Backoff(first_s=0.5, ceiling_s=5.0)
"""Between questions to an IMEX of the host's, which tells nobody by itself."""


class Channels:
    """What workloads get: device nodes, in a spec of the claim's own."""

    def __init__(
        self, devices: NodeDevices, specs: SpecFiles, place: Callable[[], Place], disk: Disk
    ) -> None:
        self._devices = devices
        self._specs = specs
        self._place = place
        self._disk = disk

    async def write(
        self, holding: DomainHolding, clique: CliqueID, domain: Domain, deadline: float
    ) -> DomainHolding:
        """Have the claim's channels where the container runtime finds them; none without fabric.

        Raises:
            DriverError: `DeviceNodeMissing`, `DeadlineExceeded`.
        """
        if not clique:
            return holding.given(clique, 0, ())
        with_all = await self._disk.run(deadline, self._devices.count)
        count = membership.channel_count(domain, holding.mode, with_all)
        return await self.prove(holding.given(clique, count, ()), deadline)

    async def prove(self, holding: DomainHolding, deadline: float) -> DomainHolding:
        """Have what was given before, by the numbers that the devices have now.

        Raises:
            DriverError: `DeviceNodeMissing`, `DeadlineExceeded`.
        """
        if not holding.channels:
            return holding
        name = await self._disk.run(deadline, self._written, holding)
        return holding.given(holding.clique, holding.channels, (name,))

    def _written(self, holding: DomainHolding) -> str:
        devices = self._devices.channels(holding.first_channel, holding.channels)
        made = edits.channels(self._place(), devices)
        return self._specs.write(holding.uid, holding.device.device, made)


class DomainChannels:
    """Gives channels of domains that have daemons of ours."""

    def __init__(
        self,
        channels: Channels,
        fabric: FabricWatch,
        joining: Membership,
        watch: DaemonWatch,
        turns: Turns,
        story: Story,
        telemetry: Telemetry,
    ) -> None:
        self._channels = channels
        self._fabric = fabric
        self._joining = joining
        self._watch = watch
        self._turns = turns
        self._story = story
        self._telemetry = telemetry

    async def join(self, holding: DomainHolding, domain: Domain, deadline: float) -> None:
        """Label the node: the daemon of the domain is started here by that.

        Raises:
            RetryableError: `NodeInOtherDomain`; `ApiUnavailable`.
        """
        began = self._story.now()
        tell_part = partial(
            self._story.part, "label node", holding.ref, domain, holding.clique, began
        )
        try:
            with self._telemetry.step("label node", {keys.DOMAIN_UID: holding.domain}):
                pause = partial(self._turns.pause, holding.ref)
                is_new = await self._joining.join(holding, deadline, pause)
        except DriverError as error:
            if error.reason is not Reason.NODE_IN_OTHER_DOMAIN:  # else it has no part in this one
                tell_part(error)
            raise
        if is_new:
            tell_part()

    async def give(
        self, holding: DomainHolding, domain: Domain, deadline: float, tell: Tell | None
    ) -> DomainHolding:
        """Wait for the daemon of this node, then write what the claim gets.

        Raises:
            DriverError: `DaemonNotReady`, `FabricError`, `DeviceNodeMissing`, …; the claim stays
                held, because the node stays labelled for it.
        """
        clique = await self._fabric.wanted(holding.ref, self._turns, deadline)
        began = self._story.now()
        tell_part = partial(self._story.part, "wait domain", holding.ref, domain, clique, began)
        facts = {keys.DOMAIN_UID: domain.uid, keys.CLIQUE: clique}
        try:
            with self._telemetry.step("wait domain", facts) as span:
                span.link(self._story.link(domain.uid))
                await self._watch.ready(holding.ref, domain, clique, deadline, span, tell)
        except DriverError as error:
            tell_part(error, span)
            raise
        tell_part(None, span)
        with self._telemetry.step("write cdi"):
            return await self._channels.write(holding, clique, domain, deadline)


class HostChannels:
    """Gives channels where the host runs IMEX itself."""

    def __init__(
        self,
        channels: Channels,
        fabric: FabricWatch,
        imex: HostImex,
        turns: Turns,
        telemetry: Telemetry,
    ) -> None:
        self._channels = channels
        self._fabric = fabric
        self._imex = imex
        self._turns = turns
        self._telemetry = telemetry

    async def give(self, holding: DomainHolding, domain: Domain, deadline: float) -> DomainHolding:
        """Wait for the host's IMEX, then write the one channel that the claim was allocated.

        Raises:
            DriverError: `DaemonNotReady`, `ImexBinaryMissing`, `FabricError`, …
        """
        clique = await self._fabric.wanted(holding.ref, self._turns, deadline)
        if clique:
            with self._telemetry.step("wait imex"):
                await self._ready(holding, deadline)
        single = Domain(domain.uid, domain.namespace, domain.name)
        with self._telemetry.step("write cdi"):
            return await self._channels.write(holding, clique, single, deadline)

    async def _ready(self, holding: DomainHolding, deadline: float) -> None:
        unready = 0
        while True:
            try:
                return await self._imex.check()
            except RetryableError as error:
                unready += 1
                pause_s = _ASK.delay(unready, random.random())  # noqa: S311 - spreads load
                if not backoff.fits(pause_s, asyncio.get_running_loop().time(), deadline):
                    raise
                await self._turns.pause(holding.ref, error, pause_s)
