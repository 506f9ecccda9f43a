"""`python -m e2e.second_driver.driver NODE KUBECONFIG FOLDER`: virtual devices on a node.

A device is an environment variable. Every claim it is asked for is noted, and orders may make a
call fail or hang.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nvdra_api.protocol import allocation
from nvdra_api.runtime.kube import client
from nvdra_api.runtime.kube.client import Client, KubeSettings
from nvdra_api.runtime.kube.publisher import Publisher
from nvdra_api.runtime.kubelet import server
from nvdra_api.runtime.process import app
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.errors import DriverError
from nvdra_api.types.ids import ClaimUID, DeviceName, NodeName, PoolName
from nvdra_api.types.prepared import PreparedClaim, PreparedDevice
from nvdra_api.types.slices import Device, Pool, Slice
from nvdra_cdi import files, version
from nvdra_cdi.model import ContainerEdits, Spec
from nvdra_cdi.model import Device as CdiDevice

from e2e.second_driver.orders import DRIVER, ENV, Call, Desk

DEVICES = tuple(DeviceName(f"thing-{index}") for index in range(32))
KIND = f"{DRIVER}/thing"
PLUGINS = Path("/var/lib/kubelet/plugins")
REGISTRY = Path("/var/lib/kubelet/plugins_registry")
CDI = Path("/var/run/cdi")
LOOK_S = 0.1


class _Heard(NamedTuple):
    ref: ClaimRef
    failure: str | None


class Second:
    """What the kubelet's calls come to: a `Handler`."""

    def __init__(self, api: Client, desk: Desk) -> None:
        self._api = api
        self._desk = desk

    async def prepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, PreparedClaim | str]:
        """The claims' devices, unless other orders were given."""
        return {
            each.ref.uid: each.failure or await self._devices(each.ref, deadline)
            for each in await self._heard("prepare", claims)
        }

    async def unprepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, str | None]:
        """Nothing has to be taken back."""
        return {each.ref.uid: each.failure for each in await self._heard("unprepare", claims)}

    async def _heard(self, method: str, claims: Sequence[ClaimRef]) -> list["_Heard"]:
        """Note the call, hang as long as we are told to, and learn who is to fail."""
        calls = [(ref, Call(method, ref.name, ref.uid)) for ref in claims]
        for _, call in calls:
            self._desk.note(call)
        while any(call.order in self._desk.read().block for _, call in calls):  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(LOOK_S)
        orders = self._desk.read()
        return [_Heard(ref, orders.fail.get(call.order)) for ref, call in calls]

    async def _devices(self, ref: ClaimRef, deadline: float) -> PreparedClaim | str:
        try:
            claim = await self._api.claim(ref, deadline)
        except DriverError as error:
            return str(error)
        results = allocation.results(claim, DRIVER)
        return PreparedClaim(
            tuple(
                PreparedDevice(
                    (result.base_request,),
                    PoolName(result.pool),
                    DeviceName(result.device),
                    (f"{KIND}={result.device}",),
                )
                for result in results
            )
        )


async def main(node: NodeName, kubeconfig: str, folder: Path, stop: asyncio.Event) -> None:
    """Serve until told to stop."""
    desk = Desk(folder)
    CDI.mkdir(parents=True, exist_ok=True)
    files.write(_spec(), CDI / f"{DRIVER}.json")
    pool = Pool(PoolName(node), (Slice(tuple(Device(name) for name in DEVICES)),))
    plugin_dir = PLUGINS / DRIVER
    plugin_dir.mkdir(parents=True, exist_ok=True)
    async with client.connected(KubeSettings(kubeconfig=kubeconfig)) as api:
        publisher = Publisher(api, DRIVER, node)
        async with (
            publisher.running(),
            server.serving(DRIVER, plugin_dir, REGISTRY, Second(api, desk)) as kubelet,
        ):
            publisher.publish(pool)
            while not (kubelet.is_registered and publisher.state.is_published):  # noqa: ASYNC110 - neither tells
                await asyncio.sleep(LOOK_S)
            desk.open()
            await stop.wait()


def _spec() -> Spec:
    devices = tuple(
        CdiDevice(name, ContainerEdits(env=(f"{ENV}{index}={name}",)))
        for index, name in enumerate(DEVICES)
    )
    return version.with_minimum(Spec(KIND, devices))


if __name__ == "__main__":
    _, node, kubeconfig, folder = sys.argv
    sys.exit(app.run(lambda stop: main(NodeName(node), kubeconfig, Path(folder), stop)))
