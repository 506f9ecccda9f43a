# SPDX-License-Identifier: Apache-2.0
"""Reads what the kubelet knows of device plugins: its checkpoint of their devices.

The kubelet replaces the file, `device-plugins/kubelet_internal_checkpoint` below its root
directory, by rename whenever a plugin registers or goes, the health of a device changes, or a
container gets one. `RegisteredDevices` has the healthy devices of each resource; the list is empty
once the plugin is gone. `PodDeviceEntries` has what containers were given; entries of ended pods
stay until the next container needs a device, so a pod counts while its directory exists. The
checksum is made of Go's own description of the values, and is not verified: the file is only read
for remarks to people.
Source: kubernetes pkg/kubelet/cm/devicemanager/checkpoint; manager.go, writeCheckpoint.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from nvdra_runtime.claims.kubelet_checkpoint import null_to_empty, null_to_empty_map
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from nvdra_gpu_plugin.device_plugin import gpu_resources
from nvdra_gpu_plugin.device_plugin.gpu_resources import OfferedGpus

FILE: Final = Path("device-plugins/kubelet_internal_checkpoint")
"""The checkpoint below the kubelet's root directory."""


class AllocationsUnreadable(Exception):
    """The kubelet's file cannot be read; the message says which and why."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class _Entry(_Model):
    pod: str = Field(alias="PodUID")
    resource: str = Field(alias="ResourceName")


_Entries = Annotated[tuple[_Entry, ...], BeforeValidator(null_to_empty)]
_Ids = Annotated[tuple[str, ...], BeforeValidator(null_to_empty)]
_Registered = Annotated[Mapping[str, _Ids], BeforeValidator(null_to_empty_map)]


class _Data(_Model):
    entries: _Entries = Field(alias="PodDeviceEntries")
    registered: _Registered = Field(alias="RegisteredDevices")


class _Checkpoint(_Model):
    data: _Data = Field(alias="Data")


class AllocationFile:
    """The file of one kubelet. Calls block, and belong on a worker thread."""

    def __init__(self, kubelet_root: Path) -> None:
        self._path = kubelet_root / FILE
        self._pods = kubelet_root / "pods"

    def read(self) -> OfferedGpus:
        """What device plugins have to do with GPUs; nothing if there is no file.

        Raises:
            AllocationsUnreadable: The file is damaged or has an unknown format.
        """
        try:
            data = _Checkpoint.model_validate_json(self._path.read_bytes()).data
            return OfferedGpus(
                devices={
                    resource: len(ids)
                    for resource, ids in data.registered.items()
                    if ids and gpu_resources.is_of_gpus(resource)
                },
                pods=Counter(
                    resource
                    for pod, resource in {(entry.pod, entry.resource) for entry in data.entries}
                    if gpu_resources.is_of_gpus(resource) and (self._pods / pod).is_dir()
                ),
            )
        except FileNotFoundError:
            return OfferedGpus()
        except (OSError, ValueError) as error:
            raise AllocationsUnreadable(f"{self._path}: {_describe(error)}") from error


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    return str(error)
