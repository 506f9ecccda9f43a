"""A small model of which claims are prepared on a node, with which the plugin must agree.

The model is told the requests and answers, and checks whether the answers and the records on disk
can be right. It has no side effects.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from nvdra_api.resource.claims import ClaimRef

WHOLE = range(8)
"""The memory slices of an H100 GPU."""
SLICES = {"1g10gb": 1, "1g20gb": 2, "2g20gb": 2, "3g40gb": 4, "4g40gb": 4, "7g80gb": 8}
"""How many of them a MIG device takes, by its profile."""

GONE_REASONS = ("ClaimNotFound", "ClaimUIDChanged")


@dataclass(eq=False)
class ModelClaim:
    """A claim in the model.

    Attributes:
        ref: Its name and UID.
        devices: The devices that are allocated to it, in order.
        is_admin: Whether it has adminAccess and so conflicts with no other claim.
        shares: The share IDs of its devices, in order; empty if it has whole devices.
        answer: The first successful answer; all others must be the same.
    """

    ref: ClaimRef
    devices: tuple[str, ...]
    is_admin: bool
    shares: tuple[str, ...] = ()
    answer: bytes = b""

    def __repr__(self) -> str:
        kind = " admin" if self.is_admin else " share" if self.shares else ""
        return f"<{self.ref.name} {'+'.join(self.devices)}{kind}>"

    def excludes(self, other: "ModelClaim") -> bool:
        """Whether the two claims cannot be prepared at the same time."""
        if self is other or self.is_admin or other.is_admin:
            return False
        if self.shares and other.shares and set(self.shares).isdisjoint(other.shares):
            return False
        return not parts(self.devices).isdisjoint(parts(other.devices))


def parts(devices: Iterable[str]) -> set[tuple[str, int]]:
    """The memory slices of GPUs that devices take: all of a whole GPU, some for a MIG device."""
    taken = set[tuple[str, int]]()
    for device in devices:
        gpu, _, mig = device.partition("-mig-")
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
    """

    existing: set[ModelClaim] = field(default_factory=set)
    prepared: set[ModelClaim] = field(default_factory=set)
    known_to_kubelet: set[ModelClaim] = field(default_factory=set)

    def is_orphan(self, claim: ModelClaim) -> bool:
        """Whether the plugin may remove a prepared claim at any time."""
        return claim not in self.existing and claim not in self.known_to_kubelet

    def conflicting_claims(self, claim: ModelClaim) -> set[ModelClaim]:
        """The prepared claims that conflict with the claim."""
        return {other for other in self.prepared if claim.excludes(other)}

    def is_blocked(self, claim: ModelClaim) -> bool:
        """Whether a conflicting claim will not be removed by a cleanup."""
        return any(not self.is_orphan(other) for other in self.conflicting_claims(claim))

    def check_records(self, uids: Collection[str]) -> None:
        """Compare with the records on disk; orphans may have been removed in the meantime."""
        held = {claim.ref.uid: claim for claim in self.prepared}
        assert held.keys() >= set(uids), f"recorded, held by nobody: {set(uids) - held.keys()}"
        for uid, claim in held.items():
            if uid not in uids:
                assert self.is_orphan(claim), f"{claim} was answered and has no record"
                self.prepared.remove(claim)
        twice = [
            {one, other} for one in self.prepared for other in self.prepared if one.excludes(other)
        ]
        assert not twice, f"held twice: {twice}"

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
            if error and claim in before:
                assert self.is_orphan(claim), f"{claim} is held and was answered {error}"
            elif error:
                self._check_failure(claim, error)

    def _check_success(self, claim: ModelClaim, answer: "PrepareAnswer") -> None:
        assert claim in self.prepared or claim in self.existing, f"{claim} is gone and was prepared"
        assert answer.devices == claim.devices, f"{claim} was given {answer.devices}"
        assert answer.shares == claim.shares, f"{claim} was given shares {answer.shares}"
        assert claim.answer in (b"", answer.wire), f"{claim} was answered in another way before"
        claim.answer = answer.wire
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
