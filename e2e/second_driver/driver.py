# SPDX-License-Identifier: Apache-2.0
"""`python -m e2e.second_driver.driver NODE KUBECONFIG FOLDER`: virtual devices on a node.

A device is an environment variable. The driver records every call, and instructions can make a call
fail or hang.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nvdra_api.errors import DriverError
from nvdra_api.ids import ClaimUID, DeviceName, NodeName, PoolName
from nvdra_api.resource.claims import ClaimRef
from nvdra_api.resource.slices import Device
from nvdra_cdi import files, version
from nvdra_cdi.model import ContainerEdits, Spec
from nvdra_cdi.model import Device as CdiDevice
from nvdra_runtime.claims import allocation
from nvdra_runtime.claims.prepare_result import PreparedDevice, PrepareResult
from nvdra_runtime.kube import client
from nvdra_runtime.kube.client import Client, KubeSettings
from nvdra_runtime.kubeletplugin import server
from nvdra_runtime.process import app
from nvdra_runtime.resourceslices.pool import Pool, Slice
from nvdra_runtime.resourceslices.publisher import Publisher

from e2e.second_driver.control_files import DRIVER, ENV_PREFIX, ControlDir, RecordedCall

DEVICES = tuple(DeviceName(f"thing-{index}") for index in range(32))
KIND = f"{DRIVER}/thing"
PLUGINS = Path("/var/lib/kubelet/plugins")
REGISTRY = Path("/var/lib/kubelet/plugins_registry")
CDI = Path("/var/run/cdi")
POLL_S = 0.1


class _CallOutcome(NamedTuple):
    ref: ClaimRef
    failure: str | None


class SecondDriver:
    """Handles the kubelet's calls: a `ClaimHandler`."""

    def __init__(self, api: Client, desk: ControlDir) -> None:
        self._api = api
        self._desk = desk

    async def prepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, PrepareResult | str]:
        """Return the claims' devices, or the errors of the instructions."""
        return {
            each.ref.uid: each.failure or await self._devices(each.ref, deadline)
            for each in await self._follow_instructions("prepare", claims)
        }

    async def unprepare(
        self, claims: Sequence[ClaimRef], deadline: float, traceparent: str | None
    ) -> Mapping[ClaimUID, str | None]:
        """Succeed, except for the errors of the instructions."""
        return {
            each.ref.uid: each.failure
            for each in await self._follow_instructions("unprepare", claims)
        }

    async def _follow_instructions(
        self, method: str, claims: Sequence[ClaimRef]
    ) -> list["_CallOutcome"]:
        """Record the call, wait while it is blocked, and look up the errors."""
        calls = [(ref, RecordedCall(method, ref.name, ref.uid)) for ref in claims]
        for _, call in calls:
            self._desk.record_call(call)
        while any(call.order in self._desk.read().block for _, call in calls):  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(POLL_S)
        orders = self._desk.read()
        return [_CallOutcome(ref, orders.fail.get(call.order)) for ref, call in calls]

    async def _devices(self, ref: ClaimRef, deadline: float) -> PrepareResult | str:
        try:
            claim = await self._api.get_claim(ref, deadline)
        except DriverError as error:
            return str(error)
        results = allocation.results(claim, DRIVER)
        return PrepareResult(
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
    desk = ControlDir(folder)
    CDI.mkdir(parents=True, exist_ok=True)
    files.write(_spec(), CDI / f"{DRIVER}.json")
    pool = Pool(PoolName(node), (Slice(tuple(Device(name=name) for name in DEVICES)),))
    plugin_dir = PLUGINS / DRIVER
    plugin_dir.mkdir(parents=True, exist_ok=True)
    async with client.connect(KubeSettings(kubeconfig=kubeconfig)) as api:
        publisher = Publisher(api, DRIVER, node)
        async with (
            publisher.running(),
            server.serve(DRIVER, plugin_dir, REGISTRY, SecondDriver(api, desk)) as kubelet,
        ):
            publisher.publish(pool)
            while not (kubelet.is_registered and publisher.state.is_published):  # noqa: ASYNC110 - neither tells
                await asyncio.sleep(POLL_S)
            desk.mark_registered()
            await stop.wait()


def _spec() -> Spec:
    devices = tuple(
        CdiDevice(name, ContainerEdits(env=(f"{ENV_PREFIX}{index}={name}",)))
        for index, name in enumerate(DEVICES)
    )
    return version.with_minimum(Spec(KIND, devices))


if __name__ == "__main__":
    _, node, kubeconfig, folder = sys.argv
    sys.exit(app.run(lambda stop: main(NodeName(node), kubeconfig, Path(folder), stop)))
