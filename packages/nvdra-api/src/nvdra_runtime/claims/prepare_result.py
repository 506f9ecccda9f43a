# SPDX-License-Identifier: Apache-2.0
"""The answer to the kubelet for one prepared claim: its devices and their CDI names.

Source: docs/reference/kubelet-plugin.md, "Messages", "Rules for the prepare answer".
"""

from dataclasses import dataclass

from nvdra_api.ids import DeviceName, PoolName


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One prepared device.

    Attributes:
        requests: Names of requests without subrequests (`main`, not `main/sub`). Empty means all
            requests of the claim.
        pool: Pool of the allocated device.
        device: Name of the allocated device.
        cdi_ids: Qualified CDI names, `<vendor>/<class>=<name>`. Health reports use the first one as
            the name of the device.
        share_id: Share ID of the allocation result, or None.
    """

    requests: tuple[str, ...]
    pool: PoolName
    device: DeviceName
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class PrepareResult:
    """The answer for a claim.

    Attributes:
        devices: Its devices, in the order of its allocation results.
        unapplied_configs: Which of its configs have no effect, and why, for users.
    """

    devices: tuple[PreparedDevice, ...]
    unapplied_configs: tuple[str, ...] = ()
