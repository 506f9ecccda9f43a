"""What a prepared claim holds: what is recorded of it on its node, and how people are told of it.

Each driver adds what it knows of its devices. A record lies in the state store as the JSON of these
models, so fields are only ever added, with a default: an older record must stay readable.
"""

from abc import abstractmethod
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.errors import Reason, RetryableError
from nvdra_api.types.ids import ClaimUID, DeviceName, PodUID, PoolName
from nvdra_api.types.prepared import PreparedClaim, PreparedDevice

_MOST_PODS = 3
"""Pods that a refusal names; a claim can have 256, an Event 1024 bytes."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class HeldDevice(_Frozen):
    """One allocated device of a prepared claim, and what the kubelet was told about it."""

    request: str
    """Base request name: what the kubelet matches containers by."""
    pool: PoolName
    device: DeviceName
    kind: str
    """For telemetry: `gpu`, `channel`."""
    share_id: str | None = None

    @property
    def label(self) -> str:
        """What people are told that the claim has."""
        return self.device

    @property
    @abstractmethod
    def cdi_ids(self) -> tuple[str, ...]:
        """What the container runtime is asked for."""


class Holding(_Frozen):
    """A claim that is prepared on this node."""

    namespace: str
    name: str
    uid: ClaimUID
    pods: tuple[PodUID, ...] = ()
    """Pods the claim was reserved for when it was prepared."""
    pod_names: tuple[str, ...] = ()
    """Their names, in the same order, in the claim's namespace; for people."""
    devices: tuple[HeldDevice, ...]

    @property
    def kind(self) -> str:
        """Kind of its devices, for telemetry."""
        return self.devices[0].kind if self.devices else ""

    @property
    def ref(self) -> ClaimRef:
        """The claim, as logs and answers name it."""
        return ClaimRef(self.namespace, self.name, self.uid)

    @property
    def users(self) -> str:
        """Who uses it, as people are told: `pod a, b`."""
        # A record that was rebuilt knows the UIDs alone.
        known = self.pod_names or tuple(f"with UID {pod}" for pod in self.pods)
        more = f" and {len(known) - _MOST_PODS} more" if len(known) > _MOST_PODS else ""
        return f"pod {', '.join(known[:_MOST_PODS])}{more}" if known else "a pod that is not known"

    def answer(self) -> PreparedClaim:
        """What the kubelet is told: the same for every repeat."""
        return PreparedClaim(
            tuple(
                PreparedDevice(
                    requests=(device.request,),
                    pool=device.pool,
                    device=device.device,
                    cdi_ids=device.cdi_ids,
                    share_id=device.share_id,
                )
                for device in self.devices
            )
        )


H = TypeVar("H", bound=Holding)
"""What one driver holds."""


class DeviceInUseError(RetryableError):
    """A device that another claim holds; waited for, because that claim may let go.

    Attributes:
        device: The device.
        holder: The claim that holds it.
        places: Everything that is wanted, by what claims queue for: boards, channels.
    """

    def __init__(
        self, wanted: ClaimRef, device: str, holder: Holding, places: tuple[str, ...]
    ) -> None:
        super().__init__(
            Reason.DEVICE_IN_USE,
            f"{device} is held by claim {holder.namespace}/{holder.name} "
            f"(UID {holder.uid}) for {holder.users}",
            "it is given to this claim as soon as the kubelet unprepares that one, when its last "
            "pod on this node has ended; if it does not end, see what keeps that pod terminating",
            claim=str(wanted),
            device=device,
            holder=str(holder.ref),
        )
        self.device = device
        self.holder = holder
        self.places = places
