# SPDX-License-Identifier: Apache-2.0
"""The kubelet's checkpoint of device plugins, as a kubelet writes it; the test is the kubelet.

Source: kubernetes pkg/kubelet/cm/devicemanager. The checksum, which a kubelet makes of Go's own
description of the values, is any number here: only the kubelet itself verifies it.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKSUM = 1776651384


@dataclass
class DevicePluginFile:
    """The checkpoint of one kubelet.

    Attributes:
        root: The kubelet's root directory.
        registered: The healthy devices of each resource.
        entries: What containers were given.
    """

    root: Path
    registered: dict[str, list[str]] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The path of the checkpoint."""
        return self.root / "device-plugins" / "kubelet_internal_checkpoint"

    def register(self, resource: str, devices: Sequence[str]) -> None:
        """A plugin of the resource connects to the kubelet and lists its devices."""
        self.registered[resource] = list(devices)
        self.write()

    def disconnect(self, resource: str) -> None:
        """The plugin ends: its resource stays, without healthy devices."""
        self.registered[resource] = []
        self.write()

    def give(self, resource: str, pod: str, devices: Sequence[str]) -> None:
        """A container of a pod gets devices, of one NUMA node."""
        (self.root / "pods" / pod).mkdir(parents=True, exist_ok=True)
        response = "\n".join(("NVIDIA_VISIBLE_DEVICES", ",".join(devices))).encode()
        self.entries.append(
            {
                "PodUID": pod,
                "ContainerName": "ctr",
                "ResourceName": resource,
                "DeviceIDs": {"0": list(devices)},
                "AllocResp": base64.b64encode(response).decode(),
            }
        )
        self.write()

    def write(self) -> None:
        """Replace the checkpoint by rename."""
        data = {
            "PodDeviceEntries": self.entries or None,
            "RegisteredDevices": self.registered,
        }
        self.replace(json.dumps({"Data": data, "Checksum": CHECKSUM}, separators=(",", ":")))

    def replace(self, text: str) -> None:
        """Replace the checkpoint with any text."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(".tmp-checkpoint")
        temporary.write_text(text)
        temporary.replace(self.path)
