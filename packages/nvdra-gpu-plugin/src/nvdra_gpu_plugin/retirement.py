"""Old CDI specs go when the hardware is seen to be another and nobody stands on them any more.

Not before it is known who does: a claim whose record was lost stands on a spec that no record
names, until `rebuild` has taken it over from the kubelet's own record. Where that cannot be read,
every spec stays.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.rebuild import Rebuild

from nvdra_gpu_plugin.hardware import Hardware
from nvdra_gpu_plugin.records import GpuHolding, generations


@asynccontextmanager
async def running(
    hardware: Hardware, held: HeldClaims[GpuHolding], rebuild: Rebuild[GpuHolding]
) -> AsyncIterator[None]:
    """Remove old specs while the block runs; who releases the last claim of one does it, too."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_run(hardware, held, rebuild), name="retirement")
        try:
            yield
        finally:
            task.cancel()


async def _run(
    hardware: Hardware, held: HeldClaims[GpuHolding], rebuild: Rebuild[GpuHolding]
) -> None:
    await rebuild.done.wait()
    hardware.may_retire = True
    serial = 0
    while True:
        serial = await hardware.changed_since(serial)
        await hardware.retire_specs(generations(held.values()))
