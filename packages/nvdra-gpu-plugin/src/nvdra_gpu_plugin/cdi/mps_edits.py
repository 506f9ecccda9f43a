# SPDX-License-Identifier: Apache-2.0
"""What a container gets that uses a device by MPS, beside the device itself. Pure.

Source: docs/reference/cdi.md §20; docs/reference/gpu-prepare.md, "MPS".
"""

from typing import Final

from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.model import ContainerEdits, Mount

from nvdra_gpu_plugin.devices import mps_layout
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord

_SHM_OPTIONS: Final = ("rw", "nosuid", "nodev", "bind")
PIPE_OPTIONS: Final = ("ro", "nosuid", "nodev", "noexec", "bind")
"""A socket and a FIFO are used on a read-only mount as on any other. Who could write there could
have NVIDIA's daemon, which is root on the node, open files of the node.
"""


def for_client(record: GpuClaimRecord, device: GpuDeviceRecord) -> ContainerEdits:
    """The connection with the daemon of a device.

    Raises:
        DiscoveryError: The device has no daemon.
    """
    for step in record.daemons:
        if device.device in step.devices and step.directory:
            return ContainerEdits(
                env=(f"CUDA_MPS_PIPE_DIRECTORY={mps_layout.CLIENT_PIPE}",),
                mounts=(
                    _mount(step.directory, mps_layout.SHM, mps_layout.CLIENT_SHM, _SHM_OPTIONS),
                    _mount(step.directory, mps_layout.PIPE, mps_layout.CLIENT_PIPE, PIPE_OPTIONS),
                ),
            )
    raise DiscoveryError(f"{device.device} of claim {record.ref} has no MPS control daemon")


def _mount(directory: str, name: str, container_path: str, options: tuple[str, ...]) -> Mount:
    return Mount(f"{directory}/{name}", container_path, options)
