# SPDX-License-Identifier: Apache-2.0
"""Records of prepared claims.

The record store keeps a record as the JSON of these models. Each driver adds fields for its
devices. A new field needs a default, so that records of older releases stay readable, and no field
is ever removed.
"""

from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar, NamedTuple, Self, TypeVar

from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import ClaimUID, DeviceName, PodUID, PoolName
from nvdra_api.resource.claims import ClaimRef
from pydantic import BaseModel, ConfigDict

from nvdra_runtime.claims.prepare_result import PreparedDevice, PrepareResult

_MOST_PODS = 3
"""How many pods an error names. A claim can have 256 pods, and an Event has 1024 bytes."""

_UNPREPARED_FIRST = (
    "this claim gets it as soon as the kubelet unprepares the other claim, after its last pod on "
    "this node has ended; if that pod does not end, find out why"
)
_UNDONE_FIRST = (
    "the plugin tries again every few seconds; if it lasts, an administrator: see the Events of "
    "the Node"
)
_ASK_OPERATOR = "; the plugin's log and its command status on the node name that claim to operators"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class DeviceRecord(_Frozen):
    """One allocated device of a prepared claim."""

    request: str
    """Name of the request without the subrequest. The kubelet knows requests by this name."""
    pool: PoolName
    device: DeviceName
    kind: str
    """Kind of the device in telemetry: `gpu`, `channel`."""
    share_id: str | None = None

    @property
    def display_name(self) -> str:
        """The name of the device in texts for people."""
        return self.device

    @property
    @abstractmethod
    def cdi_ids(self) -> tuple[str, ...]:
        """The qualified CDI names that the container runtime is given."""


class PreparedClaimRecord(_Frozen):
    """The record of a claim that is prepared on this node."""

    namespace: str
    name: str
    uid: ClaimUID
    pods: tuple[PodUID, ...] = ()
    """UIDs of the pods that the claim was reserved for when it was prepared."""
    pod_names: tuple[str, ...] = ()
    """Names of these pods, in the same order. They are in the namespace of the claim."""
    is_released: bool = False
    """The claim is unprepared, and what was done for it cannot be undone at present: a tombstone,
    which is undone before anything else is done in its place, or ends with the boot."""
    released_at: datetime | None = None
    """When it was unprepared, in UTC. None in a record that is no tombstone or has none yet, as
    earlier releases have written it."""
    undo_remedy: str = ""
    """What is to be done so that it can be undone, as the last attempt of the claim has said."""
    devices: tuple[DeviceRecord, ...]

    @property
    def kind(self) -> str:
        """Kind of the claim's devices in telemetry. Empty if it has none."""
        return self.devices[0].kind if self.devices else ""

    @property
    def ref(self) -> ClaimRef:
        """Namespace, name and UID of the claim."""
        return ClaimRef(self.namespace, self.name, self.uid)

    @property
    def pods_text(self) -> str:
        """The pods that use the claim, for texts: `pod a, b`."""
        # A recovered record has no names, because the kubelet's checkpoint has UIDs only.
        known = self.pod_names or tuple(f"with UID {pod}" for pod in self.pods)
        more = f" and {len(known) - _MOST_PODS} more" if len(known) > _MOST_PODS else ""
        return f"pod {', '.join(known[:_MOST_PODS])}{more}" if known else "a pod that is not known"

    def prepare_result(self) -> PrepareResult:
        """Return the answer to the kubelet. It is the same for every call."""
        return PrepareResult(
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


class Change(_Frozen):
    """One change of the node, as it is written to the state file."""

    FOUND: ClassVar[frozenset[str]] = frozenset()
    """The fields that only an attempt finds out: what was there before, and what was made."""

    device: DeviceName
    """The device of the claim, for errors."""

    @property
    def has_made(self) -> bool:
        """Whether a device of the claim exists because it was made by this change."""
        return False

    @property
    @abstractmethod
    def place(self) -> str:
        """What is changed: changes of one place follow one another, those of others do not wait."""

    @property
    def plan(self) -> str | None:
        """What two attempts must have in common for one to go on where the other has ended.

        None if it depends on the moment whether the change is needed.
        """
        return self.model_dump_json(exclude=set(self.FOUND))

    def begun(self) -> Self:
        """The change before it is made again: what it has made is its own if it is still there."""
        return self

    def anew(self) -> Self:
        """The change as if it had made nothing."""
        return self

    def resumed(self, started: Self) -> Self:
        """The change with what an earlier attempt has found."""
        return self.model_copy(update={name: getattr(started, name) for name in self.FOUND})


class ChangingRecord(PreparedClaimRecord):
    """The record of a claim that changes its node."""

    steps: tuple[Change, ...] = ()
    """The changes, in the order in which they are made."""
    steps_boot: str = ""
    """ID of the boot in which they were begun. Of an earlier boot nothing is left."""

    def with_steps(self, steps: Sequence[Change]) -> Self:
        """The record after changes were made or undone."""
        return self.model_copy(update={"steps": tuple(steps)})

    def begun(self, boot: str) -> Self:
        """The record before its changes are made in this boot, for the first time or again."""
        steps = [step.begun() for step in self.steps]
        return self.with_steps(steps).model_copy(update={"steps_boot": boot})

    def resumed(self, started: Self) -> Self:
        """The record for another attempt: what an interrupted one has found is still to restore."""
        found = {step.plan: step for step in started.steps if step.plan is not None}
        return self.with_steps(
            [step.resumed(found[step.plan]) if step.plan in found else step for step in self.steps]
        )

    def has_same_plan(self, other: Self) -> bool:
        """Whether both claim the same changes. What depends on the moment does not count."""
        return {step.plan for step in self.steps} - {None} == {
            step.plan for step in other.steps
        } - {None}

    def ended(self, left: Sequence[Change]) -> Self:
        """The record of the claim, which has ended, when only these changes are left to undo."""
        update = {"is_released": True, "devices": (), "steps": tuple(left)}
        return self.model_copy(update=update)


RecordT = TypeVar("RecordT", bound=PreparedClaimRecord)
"""The record type of one driver."""


class DeviceInUseError(RetryableError):
    """Another claim holds an allocated device. The claim waits until the other one is unprepared.

    Attributes:
        device: Name of the device.
        holder: The record of the other claim.
        device_keys: Keys of all devices that the claim needs, such as PCI addresses. Claims that
            wait for the same key get the device in the order in which they came.
    """

    def __init__(
        self,
        claim: ClaimRef,
        device: str,
        holder: PreparedClaimRecord,
        device_keys: tuple[str, ...],
        reason: Reason = Reason.DEVICE_IN_USE,
    ) -> None:
        self.device = device
        self.holder = holder
        self.device_keys = device_keys
        super().__init__(
            reason,
            self.message_for(claim.namespace),
            ((holder.undo_remedy or _UNDONE_FIRST) if holder.is_released else _UNPREPARED_FIRST)
            + ("" if claim.namespace == holder.namespace else _ASK_OPERATOR),
            operator_message=self.named_message,
            claim=str(claim),
            device=device,
            holder=str(holder.ref),
        )

    def message_for(self, namespace: str) -> str:
        """The message as readers in this namespace may see it: they see their own claims only."""
        is_own = namespace == self.holder.namespace
        return self.named_message if is_own else self.anonymous_message

    @property
    def named_message(self) -> str:
        """The message with the claim and the pods that hold the device."""
        holder = self.holder
        name = f"claim {holder.namespace}/{holder.name} (UID {holder.uid})"
        if holder.is_released:
            return (
                f"what was done to {self.device} for {name}, which has ended, cannot be undone yet"
            )
        return f"{self.device} is held by {name} for {holder.pods_text}"

    @property
    def anonymous_message(self) -> str:
        """The message without any name of the holder."""
        if self.holder.is_released:
            return f"what was done to {self.device} for an earlier claim cannot be undone yet"
        return f"{self.device} is held by a claim of another namespace"


class NamedClaim(NamedTuple):
    """How a text names a claim.

    Attributes:
        text: For readers of one namespace: `claim <namespace>/<name>:<uid>`, or `another claim`.
        operator_text: For operators, always with its name.
    """

    text: str
    operator_text: str


def name_one(claims: Sequence[ClaimRef], namespace: str) -> NamedClaim:
    """Name one of these claims to readers of a namespace: one of their own if there is one."""
    own = next((ref for ref in claims if ref.namespace == namespace), None)
    if own is not None:
        return NamedClaim(f"claim {own}", f"claim {own}")
    return NamedClaim("another claim", f"claim {claims[0]}")
