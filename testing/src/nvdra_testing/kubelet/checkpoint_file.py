# SPDX-License-Identifier: Apache-2.0
"""The files in a kubelet's root directory: its DRA checkpoint and the directories of pods.

The test writes them when the plugin is to find them. Source: kubernetes
pkg/kubelet/cm/dra/state, 1.32 to 1.37.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvdra_api.resource.claims import ClaimRef

DRIVER = "gpu.nvidia.com"


@dataclass
class CheckpointFile:
    """The checkpoint of one kubelet.

    Attributes:
        root: The kubelet's root directory.
        claims: The claims in the checkpoint, by UID.
    """

    root: Path
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The path of the checkpoint."""
        return self.root / "dra_manager_state"

    def add_claim(
        self, ref: ClaimRef, answer: Any = None, pods: Sequence[str] = ("pod-1",)
    ) -> None:
        """Add a claim, without devices as before its first call, or with those of an answer."""
        devices = [] if answer is None else [_device(each) for each in answer.devices]
        self.claims[ref.uid] = {
            "ClaimUID": ref.uid,
            "ClaimName": ref.name,
            "Namespace": ref.namespace,
            "PodUIDs": {pod: {} for pod in pods},
            "DriverState": {DRIVER: {"Devices": devices or None}},
        }
        self.write()

    def remove_claim(self, ref: ClaimRef) -> None:
        """Remove a claim, as after its unprepare."""
        self.claims.pop(ref.uid, None)
        self.write()

    def write(self) -> None:
        """Replace the checkpoint by rename, and create the directory of pods."""
        (self.root / "pods").mkdir(parents=True, exist_ok=True)
        document: Mapping[str, Any] = {
            "kind": "DRACheckpoint",
            "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
            "ClaimInfoStateList": list(self.claims.values()) or None,
        }
        data = json.dumps(document, separators=(",", ":"))
        text = json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())})
        temporary = self.root / ".tmp-dra"
        temporary.write_text(text)
        temporary.replace(self.path)

    def create_pod_dir(self, uid: str) -> Path:
        """Create and return the directory of a pod."""
        path = self.root / "pods" / uid
        path.mkdir(parents=True)
        return path


def _device(device: Any) -> dict[str, Any]:
    return {
        "PoolName": device.pool_name,
        "DeviceName": device.device_name,
        "ShareID": device.share_id if device.HasField("share_id") else None,
        "RequestNames": list(device.request_names),
        "CDIDeviceIDs": list(device.cdi_device_ids),
    }
