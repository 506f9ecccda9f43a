"""Giving a domain's daemon what it needs, and only that daemon.

Source: spec/compute-domain.md §7.7.2, §14.3 (KW-50, KW-51).
"""

from collections.abc import Callable, Collection
from functools import partial

from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.errors import NotFound
from nvdra_api.runtime.plugin.turns import Turns
from nvdra_api.types.ids import NodeName, PodUID

from nvdra_cd_plugin import cdi_specs, edits, membership, retrying
from nvdra_cd_plugin.cdi_specs import SpecFiles
from nvdra_cd_plugin.disk import Disk
from nvdra_cd_plugin.domain_files import DomainFiles
from nvdra_cd_plugin.edits import Place
from nvdra_cd_plugin.fabric_watch import FabricWatch
from nvdra_cd_plugin.membership import Domain
from nvdra_cd_plugin.node_devices import NodeDevices
from nvdra_cd_plugin.records import DomainHolding
from nvdra_cd_plugin.retrying import Pause


class DaemonClaims:
    """The claims of daemons."""

    def __init__(
        self,
        node: NodeName,
        api: Client,
        managed: Collection[str],
        fabric: FabricWatch,
        turns: Turns,
        devices: NodeDevices,
        directories: DomainFiles,
        specs: SpecFiles,
        place: Callable[[], Place],
        disk: Disk,
    ) -> None:
        self._node = node
        self._api = api
        self._managed = managed
        self._fabric = fabric
        self._turns = turns
        self._devices = devices
        self._directories = directories
        self._specs = specs
        self._place = place
        self._disk = disk

    async def admit(self, wanted: DomainHolding, deadline: float, pause: Pause) -> None:
        """Return only if the claim is used by its domain's own daemon on this node.

        Raises:
            PermanentError: `NamespaceMismatch`, `NotADaemon`.
            RetryableError: `ApiUnavailable`.
        """
        membership.check_managed(wanted.ref, self._managed)
        pods = [
            await retrying.until(deadline, partial(self._pod, wanted.namespace, name, uid), pause)
            for name, uid in zip(wanted.pod_names, wanted.pods, strict=True)
        ]
        for pod in pods or [None]:
            membership.check_pod(wanted.ref, wanted.domain, pod, self._node)

    async def give(self, wanted: DomainHolding, domain: Domain, deadline: float) -> DomainHolding:
        """Write what the daemon gets: its domain's directory, the driver's files, its own spec.

        Raises:
            DriverError: `FabricError`, `DriverMismatch`, `DeviceNodeMissing`, `StateUnavailable`, …
        """
        clique = await self._fabric.wanted(wanted.ref, self._turns, deadline)
        return await self.prove(wanted.of(domain).given(clique, 0, ()), deadline)

    async def prove(self, holding: DomainHolding, deadline: float) -> DomainHolding:
        """Have what was given before.

        Raises:
            DriverError: As `give`, but that the fabric is not asked.
        """
        names = await self._disk.run(deadline, self._written, holding)
        return holding.given(holding.clique, 0, names)

    def _written(self, holding: DomainHolding) -> tuple[str, ...]:
        self._directories.make(holding.domain)
        self._specs.write_base()
        domain = Domain(holding.domain, holding.domain_namespace, holding.domain_name)
        made = edits.daemon(
            self._place(),
            domain,
            holding.clique,
            self._directories.path(holding.domain),
            self._devices.capability() if holding.clique else None,
        )
        own = self._specs.write(holding.uid, holding.device.device, made)
        return (cdi_specs.BASE_NAME, own)

    async def _pod(
        self, namespace: str, name: str, uid: PodUID, deadline: float
    ) -> JsonObject | None:
        try:
            pod = await self._api.get(f"/api/v1/namespaces/{namespace}/pods/{name}", deadline)
        except NotFound:
            return None
        return pod if pod["metadata"]["uid"] == uid else None
