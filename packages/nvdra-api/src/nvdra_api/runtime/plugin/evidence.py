"""What the node itself says of who uses which claim: the kubelet's checkpoint, pods' directories.

Read only, below the kubelet's root directory, and only when there is a question. The checkpoint has
every claim that a pod on the node needs from before the kubelet's first call for it until after its
last one; its form is the same in 1.32 to 1.37. A pod's directory goes once its containers and
volumes are gone, whatever the kubelet forgot. Source: spec/kubelet-dra-protocol.md §2.8;
kubernetes pkg/kubelet/cm/dra/state.
"""

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.ids import ClaimUID, DeviceName, PodUID, PoolName

CHECKPOINT: Final = "dra_manager_state"
"""Its name in the kubelet's root directory; replaced by rename."""

_VERSION: Final = "checkpoint.dra.kubelet.k8s.io/v1"


class NoEvidence(Exception):
    """The kubelet's files cannot be read; the message says which and why."""


def _no_null(value: Any) -> Any:
    """What Go writes for a list or map that is not there."""
    return () if value is None else value


class _Known(BaseModel):
    model_config = ConfigDict(frozen=True)


class KnownDevice(_Known):
    """A device as a driver once answered it."""

    pool: PoolName = Field(alias="PoolName")
    device: DeviceName = Field(alias="DeviceName")
    share_id: str | None = Field(default=None, alias="ShareID")
    requests: Annotated[tuple[str, ...], BeforeValidator(_no_null)] = Field(
        default=(), alias="RequestNames"
    )
    cdi_ids: Annotated[tuple[str, ...], BeforeValidator(_no_null)] = Field(
        default=(), alias="CDIDeviceIDs"
    )


class _DriverState(_Known):
    devices: Annotated[tuple[KnownDevice, ...], BeforeValidator(_no_null)] = Field(
        default=(), alias="Devices"
    )


class KnownClaim(_Known):
    """A claim that the kubelet holds for a pod on this node, prepared or about to be."""

    uid: ClaimUID = Field(alias="ClaimUID")
    name: str = Field(alias="ClaimName")
    namespace: str = Field(alias="Namespace")
    pods: Annotated[tuple[PodUID, ...], BeforeValidator(lambda uids: tuple(uids or ()))] = Field(
        default=(), alias="PodUIDs"
    )
    drivers: Annotated[Mapping[str, _DriverState], BeforeValidator(lambda found: found or {})] = (
        Field(default={}, alias="DriverState")
    )

    @property
    def ref(self) -> ClaimRef:
        """Namespace, name and UID."""
        return ClaimRef(self.namespace, self.name, self.uid)

    def devices(self, driver: str) -> tuple[KnownDevice, ...]:
        """What the driver has answered for it, once each; empty before its first answer."""
        # Kubelets before 1.37 append a repeated answer to what they know (issue 140471).
        known = self.drivers.get(driver, _DriverState()).devices
        return tuple(device for at, device in enumerate(known) if device not in known[:at])


class _Checkpoint(_Known):
    data: str = Field(alias="Data")
    checksum: int = Field(alias="Checksum")


class _Content(_Known):
    version: str = Field(alias="apiVersion")
    claims: Annotated[tuple[KnownClaim, ...], BeforeValidator(_no_null)] = Field(
        alias="ClaimInfoStateList"
    )


class Evidence:
    """The files of one kubelet. Blocks: call it on a worker."""

    def __init__(self, kubelet_root: Path) -> None:
        self._checkpoint = kubelet_root / CHECKPOINT
        self._pods = kubelet_root / "pods"

    def claims(self) -> Mapping[ClaimUID, KnownClaim]:
        """Every claim that the kubelet holds, whatever its drivers.

        Raises:
            NoEvidence: There is no such file, or it is not whole, or not in a form that we know.
        """
        try:
            return {claim.uid: claim for claim in _parsed(self._checkpoint.read_bytes())}
        except (OSError, ValueError) as error:
            raise NoEvidence(f"{self._checkpoint}: {_sentence(error)}") from error

    def users(self, uid: ClaimUID, pods: Iterable[PodUID]) -> str:
        """Who on this node may still use the claim; empty when it is certain that nobody does.

        Args:
            uid: The claim.
            pods: Those it was prepared for, as far as we know.

        Raises:
            NoEvidence: That cannot be told.
        """
        if not self._pods.is_dir():
            raise NoEvidence(f"{self._pods}: there is no such directory")
        known = self.claims().get(uid)
        if known is not None:
            return f"the kubelet holds it for pod {', '.join(known.pods) or 'unknown'}"
        for pod in pods:
            if (self._pods / pod).exists():
                return f"pod {pod} still has its directory {self._pods / pod}"
        return ""


def _parsed(content: bytes) -> tuple[KnownClaim, ...]:
    checkpoint = _Checkpoint.model_validate_json(content)
    data = checkpoint.data.encode()
    if zlib.crc32(data) != checkpoint.checksum:
        raise ValueError("its checksum does not match")
    parsed = _Content.model_validate_json(data)
    if parsed.version != _VERSION:
        raise ValueError(f"its version is {parsed.version}, not {_VERSION}")
    return parsed.claims


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)
