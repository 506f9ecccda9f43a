# SPDX-License-Identifier: Apache-2.0
"""A small model of which claims are prepared on a node, with which the plugin must agree.

The model is told the requests and answers, and checks whether the answers and the records on disk
can be right. It has no side effects.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from nvdra_api.resource.claims import ClaimRef

WHOLE = range(8)
"""The memory slices of an H100 GPU."""
SLICES = {"1g10gb": 1, "1g20gb": 2, "2g20gb": 2, "3g40gb": 4, "4g40gb": 4, "7g80gb": 8}
"""How many of them a MIG device takes, by its profile."""

GONE_REASONS = ("ClaimNotFound", "ClaimUIDChanged")
VFIO = "gpu-vfio-"
"""How the names of devices begin that are GPUs for virtual machines."""
BUSY_REASONS = ("VfioDeviceBusy", "DeadlineExceeded", "DeviceInUse")
"""What a claim is answered whose GPU a process has open that no pod of a claim has started."""
NOT_WORKING_REASONS = ("DeviceUnhealthy", "UnknownDevice", "DeadlineExceeded", "DeviceInUse")
"""What a claim is answered whose GPU is lost or unplugged, or is being cleared by a retry."""


@dataclass(eq=False)
class ModelClaim:
    """A claim in the model.

    Attributes:
        ref: Its name and UID.
        devices: The devices that are allocated to it, in order.
        is_admin: Whether it has adminAccess and so conflicts with no other claim.
        shares: The share IDs of its devices, in order; empty if it has whole devices.
        interval: The time slice of its GPUs while it is prepared; empty if it asks for none.
        has_daemon: Whether its devices are shared by MPS.
        made: Those of its devices that are made for it.
        is_hostile: Whether its configuration exceeds a bound, so that it is refused.
        answer: The first successful answer; all others must be the same.
    """

    ref: ClaimRef
    devices: tuple[str, ...]
    is_admin: bool
    shares: tuple[str, ...] = ()
    interval: str = ""
    has_daemon: bool = False
    made: tuple[str, ...] = ()
    is_hostile: bool = False
    answer: bytes = b""

    def __repr__(self) -> str:
        kind = " admin" if self.is_admin else " share" if self.shares else ""
        kind += f" by time ({self.interval})" if self.interval else ""
        kind += " by MPS" if self.has_daemon else ""
        kind += " hostile" if self.is_hostile else ""
        return f"<{self.ref.name} {'+'.join(self.devices)}{kind}>"

    @property
    def passed(self) -> tuple[str, ...]:
        """Those of its devices that are for a virtual machine."""
        return tuple(device for device in self.devices if device.startswith(VFIO))

    @property
    def gpus(self) -> set[str]:
        """The whole GPUs that it has devices of."""
        return {gpu_of(device) for device in self.devices}

    @property
    def has_own_spec(self) -> bool:
        """Whether a CDI spec describes its devices alone."""
        return bool(self.made or self.passed) or self.has_daemon

    def excludes(self, other: "ModelClaim") -> bool:
        """Whether the two claims cannot be prepared at the same time."""
        if self is other or self.is_admin or other.is_admin:
            return False
        if self.is_hostile or other.is_hostile:
            return False
        if self.shares and other.shares and set(self.shares).isdisjoint(other.shares):
            return self.interval != other.interval and bool(self.gpus & other.gpus)
        return not parts(self.devices).isdisjoint(parts(other.devices))


def gpu_of(device: str) -> str:
    """The GPU of a device: `gpu-1` of `gpu-1-mig-1g10gb-19-0` and of `gpu-vfio-1`."""
    return device.partition("-mig-")[0].replace(VFIO, "gpu-")


def instance_of(device: str) -> tuple[str, int]:
    """The profile and the first memory slice of a MIG device's GPU instance."""
    profile, *_, start = device.partition("-mig-")[2].split("-")
    return re.sub(r"g(?=\d)", "g.", profile), int(start)


def parts(devices: Iterable[str]) -> set[tuple[str, int]]:
    """The memory slices of GPUs that devices take: all of a whole GPU, some for a MIG device."""
    taken = set[tuple[str, int]]()
    for device in devices:
        gpu, mig = gpu_of(device), device.partition("-mig-")[2]
        slices = WHOLE
        if mig:
            profile, *_, start = mig.split("-")
            slices = range(int(start), int(start) + SLICES[profile])
        taken |= {(gpu, each) for each in slices}
    return taken


@dataclass
class ClaimModel:
    """The state of one node.

    Attributes:
        existing: The claims in the API server.
        prepared: The claims that were prepared and not unprepared since.
        known_to_kubelet: The claims that the kubelet knows; no cleanup may remove them.
        undoing: The claims that have ended, and of which something is left on a GPU that does not
            work, or that is monitored. The plugin undoes it by itself when it can.
        away: The GPUs that are lost or unplugged, or answer with errors.
        monitored: The GPUs that a program outside of pods has open: what is made there stays, and
            their MIG mode does not change.
        opened: The GPUs whose nodes a process has open: they are not taken from their driver.
        lent: The GPUs that a virtual machine has, whatever becomes of its claim.
    """

    existing: set[ModelClaim] = field(default_factory=set)
    prepared: set[ModelClaim] = field(default_factory=set)
    known_to_kubelet: set[ModelClaim] = field(default_factory=set)
    undoing: set[ModelClaim] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    monitored: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    lent: set[str] = field(default_factory=set)

    def is_away(self, claim: ModelClaim) -> bool:
        """Whether a GPU of the claim does not work."""
        return bool(claim.gpus & self.away)

    def is_monitored(self, claim: ModelClaim) -> bool:
        """Whether a program outside of pods has a GPU of the claim open."""
        return bool(claim.gpus & self.monitored)

    def is_kept(self, claim: ModelClaim) -> bool:
        """Whether what was made for the claim cannot be destroyed."""
        return bool({gpu_of(device) for device in claim.made} & self.monitored)

    def is_open(self, claim: ModelClaim) -> bool:
        """Whether a process keeps a GPU of the claim from being taken from its driver."""
        return any(gpu_of(device) in self.opened for device in claim.passed)

    def is_lent(self, claim: ModelClaim) -> bool:
        """Whether a virtual machine has a GPU of the claim."""
        return any(gpu_of(device) in self.lent for device in claim.passed)

    def is_taken(self, claim: ModelClaim) -> bool:
        """Whether a GPU that the claim only looks at is on vfio for another claim."""
        others = self.prepared | self.undoing
        taken = {gpu_of(device) for other in others for device in other.passed}
        return claim.is_admin and bool(claim.gpus & taken)

    def is_uncertain(self, claim: ModelClaim) -> bool:
        """Whether it depends on the moment if the claim can be prepared."""
        if self.is_monitored(claim) or self.is_open(claim) or self.is_lent(claim):
            return True
        return any(claim.excludes(other) for other in self.undoing - {claim})

    @property
    def unsettled_gpus(self) -> set[str]:
        """The GPUs that need not be as the prepared claims want them.

        They do not work or are monitored, or share a claim with one that is.
        """
        held = self.prepared | self.undoing
        unsettled = self.away | self.monitored | self.lent
        return unsettled.union(*(claim.gpus for claim in held if claim.gpus & unsettled))

    def is_orphan(self, claim: ModelClaim) -> bool:
        """Whether the plugin may remove a prepared claim at any time."""
        return claim not in self.existing and claim not in self.known_to_kubelet

    def conflicting_claims(self, claim: ModelClaim) -> set[ModelClaim]:
        """The prepared claims that conflict with the claim."""
        return {other for other in self.prepared if claim.excludes(other)}

    def is_blocked(self, claim: ModelClaim) -> bool:
        """Whether a conflicting claim will not be removed by a cleanup."""
        return any(not self.is_orphan(other) for other in self.conflicting_claims(claim))

    def check_records(self, uids: Collection[str], started: Collection[str] = ()) -> None:
        """Compare with the records on disk; orphans may have been removed in the meantime.

        Args:
            uids: The claims that have a record.
            started: Those that have one of steps that are to be undone, as it was read afterwards.
        """
        held = {claim.ref.uid: claim for claim in self.prepared}
        assert held.keys() >= set(uids), f"recorded, held by nobody: {set(uids) - held.keys()}"
        for uid, claim in held.items():
            if uid not in uids:
                assert self.is_orphan(claim), f"{claim} was answered and has no record"
                self.prepared.remove(claim)
                if uid in started:
                    self.undoing.add(claim)
        self.undoing = {claim for claim in self.undoing if claim.ref.uid in started}
        known = self.undoing | {claim for claim in self.prepared if self.is_orphan(claim)}
        unknown = set(started) - {claim.ref.uid for claim in known}
        assert not unknown, f"begun and neither done nor undone: {unknown}"
        twice = [
            {one, other} for one in self.prepared for other in self.prepared if one.excludes(other)
        ]
        assert not twice, f"held twice: {twice}"

    def forget(self, claim: ModelClaim) -> None:
        """Note that the claim is unprepared. Its record is left if that is not undone by now."""
        if claim in self.prepared and (
            self.is_away(claim) or self.is_kept(claim) or self.is_lent(claim)
        ):
            self.undoing.add(claim)
        self.prepared.discard(claim)

    def check_prepare(
        self, claims: Iterable[ModelClaim], answers: Mapping[str, "PrepareAnswer"]
    ) -> None:
        """Check the answers to one call for these claims, each of which is named once."""
        asked = list(claims)
        before = set(self.prepared)
        for claim in asked:
            if not answers[claim.ref.uid].error:
                self._check_success(claim, answers[claim.ref.uid])
        # Conflicts are checked on the records: an orphan may have been removed for one of them.
        for claim in asked:
            error = answers[claim.ref.uid].error
            if claim.is_hostile:
                expected = ("InvalidConfig", *GONE_REASONS)
                assert error.startswith(expected), f"{claim} was answered {error or 'devices'}"
            elif error and self.is_taken(claim):
                taken = ("DeviceInUse: ", *GONE_REASONS)
                assert error.startswith(taken), f"{claim}, which is taken, was answered {error}"
            elif error and (self.is_away(claim) or self.is_uncertain(claim)):
                if self.is_kept(claim) and claim not in before:
                    self.undoing.add(claim)  # one of its devices was made, and another one was not
                allowed = (*NOT_WORKING_REASONS, *BUSY_REASONS, *GONE_REASONS)
                assert error.startswith(allowed), f"{claim}, of {self.away}, was answered {error}"
            elif error and claim in before:
                assert self.is_orphan(claim), f"{claim} is held and was answered {error}"
            elif error:
                self._check_failure(claim, error)

    def _check_success(self, claim: ModelClaim, answer: "PrepareAnswer") -> None:
        assert claim in self.prepared or claim in self.existing, f"{claim} is gone and was prepared"
        assert not self.is_away(claim), f"{claim} was prepared, although {self.away} do not work"
        assert claim in self.prepared or not self.is_open(claim), f"{claim}: {self.opened} are open"
        assert answer.devices == claim.devices, f"{claim} was given {answer.devices}"
        assert answer.shares == claim.shares, f"{claim} was given shares {answer.shares}"
        assert claim.answer in (b"", answer.wire), f"{claim} was answered in another way before"
        claim.answer = answer.wire
        self.undoing.discard(claim)
        self.prepared.add(claim)

    def _check_failure(self, claim: ModelClaim, error: str) -> None:
        if claim not in self.existing:
            assert error.startswith(GONE_REASONS), f"{claim} is gone and was answered {error}"
            return
        holders = self.conflicting_claims(claim)
        assert self.is_blocked(claim), f"{claim} was free and was answered {error}"
        assert error.startswith("DeviceInUse: "), f"{claim} has to wait and was answered {error}"
        assert any(f"held by claim default/{other.ref.name}" in error for other in holders), (
            f"{claim} waits for {holders} and was answered {error}"
        )


@dataclass(frozen=True)
class PrepareAnswer:
    """The answer for one claim: devices or an error; `wire` is the whole message.

    `shares` has the share IDs of the devices that have one.
    """

    error: str
    devices: tuple[str, ...]
    wire: bytes
    shares: tuple[str, ...] = ()
