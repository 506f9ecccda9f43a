"""Old CDI specs go when the hardware is seen to be another and nobody stands on them any more.

Not before it is known who does: a claim whose record was lost stands on a spec that no record
names, until `rebuild` has taken it over from the kubelet's own record. Where that cannot be read,
every spec stays.
"""

from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.rebuild import Rebuild

from nvdra_gpu_plugin.hardware import Hardware
from nvdra_gpu_plugin.records import GpuHolding, generations


async def run(
    hardware: Hardware, held: HeldClaims[GpuHolding], rebuild: Rebuild[GpuHolding]
) -> None:
    """Remove old specs, for ever; who releases the last claim of one does it, too."""
    await rebuild.done.wait()
    hardware.may_retire = True
    serial = 0
    while True:
        serial = await hardware.changed_since(serial)
        await hardware.retire_specs(generations(held.values()))
