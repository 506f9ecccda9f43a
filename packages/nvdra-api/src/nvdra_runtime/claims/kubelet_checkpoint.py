# SPDX-License-Identifier: Apache-2.0
"""Reads from the kubelet's files which pods of this node use a claim.

These are the checkpoint of prepared claims and the directories of pods. They are only read, and
only when needed. The checkpoint has a claim from before the kubelet's first call for it until after
the last one; its format is the same from 1.32 to 1.37. A pod's directory exists until its
containers and volumes are gone, even if the kubelet has lost its checkpoint.
Source: docs/reference/kubelet-plugin.md, "Kubelet state and restarts"; kubernetes
pkg/kubelet/cm/dra/state.
"""

import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from nvdra_api.ids import ClaimUID, DeviceName, PodUID, PoolName
from nvdra_api.resource.claims import ClaimRef
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

CHECKPOINT_FILE: Final = "dra_manager_state"
"""Name of the checkpoint in the kubelet's root directory. The kubelet replaces it by rename."""

_VERSION: Final = "checkpoint.dra.kubelet.k8s.io/v1"


class CheckpointUnreadable(Exception):
    """A file of the kubelet cannot be read; the message says which and why."""


def null_to_empty(value: Any) -> Any:
    """Go writes null for a missing list."""
    return () if value is None else value


def null_to_empty_map(value: Any) -> Any:
    """Go writes null for a missing map."""
    return {} if value is None else value


def _members(value: Any) -> Any:
    """Go writes a set as a map whose keys are the members."""
    return tuple(value) if isinstance(value, dict) else null_to_empty(value)


class _CheckpointModel(BaseModel):
    model_config = ConfigDict(frozen=True)


class CheckpointDevice(_CheckpointModel):
    """A device that a driver has prepared."""

    pool: PoolName = Field(alias="PoolName")
    device: DeviceName = Field(alias="DeviceName")
    share_id: str | None = Field(default=None, alias="ShareID")
    requests: Annotated[tuple[str, ...], BeforeValidator(null_to_empty)] = Field(
        default=(), alias="RequestNames"
    )
    cdi_ids: Annotated[tuple[str, ...], BeforeValidator(null_to_empty)] = Field(
        default=(), alias="CDIDeviceIDs"
    )


class _DriverState(_CheckpointModel):
    devices: Annotated[tuple[CheckpointDevice, ...], BeforeValidator(null_to_empty)] = Field(
        default=(), alias="Devices"
    )


class CheckpointClaim(_CheckpointModel):
    """A claim of a pod on this node that is prepared or is being prepared."""

    uid: ClaimUID = Field(alias="ClaimUID")
    name: str = Field(alias="ClaimName")
    namespace: str = Field(alias="Namespace")
    pods: Annotated[tuple[PodUID, ...], BeforeValidator(_members)] = Field(
        default=(), alias="PodUIDs"
    )
    drivers: Annotated[Mapping[str, _DriverState], BeforeValidator(null_to_empty_map)] = Field(
        default={}, alias="DriverState"
    )

    @property
    def ref(self) -> ClaimRef:
        """Namespace, name and UID."""
        return ClaimRef(self.namespace, self.name, self.uid)

    def devices(self, driver: str) -> tuple[CheckpointDevice, ...]:
        """The devices that the driver has prepared, without duplicates."""
        # Kubelets before 1.37 append a repeated answer to the checkpoint (issue 140471).
        devices = self.drivers.get(driver, _DriverState()).devices
        return tuple(device for at, device in enumerate(devices) if device not in devices[:at])


class _CheckpointFile(_CheckpointModel):
    data: str = Field(alias="Data")
    checksum: int = Field(alias="Checksum")


class _CheckpointData(_CheckpointModel):
    version: str = Field(alias="apiVersion")
    claims: Annotated[tuple[CheckpointClaim, ...], BeforeValidator(null_to_empty)] = Field(
        alias="ClaimInfoStateList"
    )


class KubeletCheckpoint:
    """The files of one kubelet. Calls block, and belong on a worker thread."""

    def __init__(self, kubelet_root: Path) -> None:
        self._checkpoint = kubelet_root / CHECKPOINT_FILE
        self._pods = kubelet_root / "pods"

    def claims(self) -> Mapping[ClaimUID, CheckpointClaim]:
        """All claims in the checkpoint, of all drivers.

        Raises:
            CheckpointUnreadable: The file is missing, damaged, or has an unknown format.
        """
        try:
            return {claim.uid: claim for claim in _parse(self._checkpoint.read_bytes())}
        except (OSError, ValueError) as error:
            raise CheckpointUnreadable(f"{self._checkpoint}: {_describe(error)}") from error

    def find_users(self, uid: ClaimUID, pods: Iterable[PodUID]) -> str:
        """Describe what on this node may still use the claim. Empty if certainly nothing does.

        Args:
            uid: The claim.
            pods: The pods that it was prepared for, as far as they are known.

        Raises:
            CheckpointUnreadable: It cannot be found out.
        """
        if _stat(self._pods) is None:
            raise CheckpointUnreadable(f"{self._pods}: there is no such directory")
        claim = self.claims().get(uid)
        if claim is not None:
            return f"the kubelet holds it for pod {', '.join(claim.pods) or 'unknown'}"
        for pod in pods:
            if _stat(self._pods / pod) is not None:
                return f"pod {pod} still has its directory {self._pods / pod}"
        return ""


def _stat(path: Path) -> os.stat_result | None:
    """The file's status; None only if it certainly does not exist.

    `Path.exists` takes a stale mount for a file that is gone, and raises for other errors.

    Raises:
        CheckpointUnreadable: It cannot be found out.
    """
    try:
        return path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointUnreadable(f"{path}: {_describe(error)}") from error


def _parse(content: bytes) -> tuple[CheckpointClaim, ...]:
    checkpoint = _CheckpointFile.model_validate_json(content)
    data = checkpoint.data.encode()
    if zlib.crc32(data) != checkpoint.checksum:
        raise ValueError("its checksum does not match")
    parsed = _CheckpointData.model_validate_json(data)
    if parsed.version != _VERSION:
        raise ValueError(f"its version is {parsed.version}, not {_VERSION}")
    return parsed.claims


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)
