# SPDX-License-Identifier: Apache-2.0
"""The kinds of `resource.nvidia.com/v1beta1`.

Five kinds are opaque parameters of claims and DeviceClasses; ComputeDomain and ComputeDomainClique
are custom resources. Every kind has a module of its own, which also has the parts of the kind.
"""

from collections.abc import Mapping
from typing import Final

from nvdra_api.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from nvdra_api.v1beta1.compute_domain import ComputeDomain
from nvdra_api.v1beta1.compute_domain_channel_config import ComputeDomainChannelConfig
from nvdra_api.v1beta1.compute_domain_clique import ComputeDomainClique
from nvdra_api.v1beta1.compute_domain_daemon_config import ComputeDomainDaemonConfig
from nvdra_api.v1beta1.device_config import DeviceConfig
from nvdra_api.v1beta1.gpu_config import GpuConfig
from nvdra_api.v1beta1.mig_device_config import MigDeviceConfig
from nvdra_api.v1beta1.vfio_device_config import VfioDeviceConfig

__all__ = [
    "CONFIGS_BY_DRIVER",
    "ComputeDomain",
    "ComputeDomainChannelConfig",
    "ComputeDomainClique",
    "ComputeDomainDaemonConfig",
    "DeviceConfig",
    "GpuConfig",
    "MigDeviceConfig",
    "VfioDeviceConfig",
]

CONFIGS_BY_DRIVER: Final[Mapping[str, tuple[type[DeviceConfig], ...]]] = {
    GPU_DRIVER: (GpuConfig, MigDeviceConfig, VfioDeviceConfig),
    COMPUTE_DOMAIN_DRIVER: (ComputeDomainChannelConfig, ComputeDomainDaemonConfig),
}
"""The config kinds that each driver accepts."""
