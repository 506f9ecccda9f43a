"""Who holds what on a node, as a kubelet and its users would keep the books: a tiny model.

It is told what was asked and answered, and says whether the answer, and the records on the disk,
can be right. Pure.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from nvdra_api.types.claims import ClaimRef

GONE = ("ClaimNotFound", "ClaimUIDChanged")


@dataclass(eq=False)
class Claim:
    """A claim of the test.

    Attributes:
        ref: Its name and UID.
        devices: Allocated to it, in order.
        is_admin: It excludes nobody and is excluded by nobody.
        answer: The first successful one; every other must be the same.
    """

    ref: ClaimRef
    devices: tuple[str, ...]
    is_admin: bool
    answer: bytes = b""

    def __repr__(self) -> str:
        return f"<{self.ref.name} {'+'.join(self.devices)}{' admin' if self.is_admin else ''}>"

    def excludes(self, other: "Claim") -> bool:
        """Whether the two cannot be held at once."""
        if self is other or self.is_admin or other.is_admin:
            return False
        return not set(self.devices).isdisjoint(other.devices)


@dataclass
class Books:
    """The state of one node.

    Attributes:
        existing: Claims that the API server has.
        held: Claims that were answered and not unprepared since.
        noted: Claims that the kubelet knows, so that no cleanup may touch them.
    """

    existing: set[Claim] = field(default_factory=set)
    held: set[Claim] = field(default_factory=set)
    noted: set[Claim] = field(default_factory=set)

    def is_orphan(self, claim: Claim) -> bool:
        """Whether the plugin may release a claim that is held, whenever it looks."""
        return claim not in self.existing and claim not in self.noted

    def obstacles(self, claim: Claim) -> set[Claim]:
        """Held claims that the claim cannot be held beside."""
        return {other for other in self.held if claim.excludes(other)}

    def must_wait(self, claim: Claim) -> bool:
        """Whether something stands in the way that nobody will clear away."""
        return any(not self.is_orphan(other) for other in self.obstacles(claim))

    def note_records(self, uids: Collection[str]) -> None:
        """Compare with the records on the disk; orphans may have been released meanwhile."""
        held = {claim.ref.uid: claim for claim in self.held}
        assert held.keys() >= set(uids), f"recorded, held by nobody: {set(uids) - held.keys()}"
        for uid, claim in held.items():
            if uid not in uids:
                assert self.is_orphan(claim), f"{claim} was answered and has no record"
                self.held.remove(claim)
        twice = [{one, other} for one in self.held for other in self.held if one.excludes(other)]
        assert not twice, f"held twice: {twice}"

    def note_prepared(self, claims: Iterable[Claim], answers: Mapping[str, "Answer"]) -> None:
        """Take the answers to one call for these claims, none of them named twice."""
        asked = list(claims)
        before = set(self.held)
        for claim in asked:
            if not answers[claim.ref.uid].error:
                self._take(claim, answers[claim.ref.uid])
        # Whether two exclude each other is seen in the records: an orphan may have gone for one.
        for claim in asked:
            error = answers[claim.ref.uid].error
            if error and claim in before:
                assert self.is_orphan(claim), f"{claim} is held and was answered {error}"
            elif error:
                self._must_be_refused(claim, error)

    def _take(self, claim: Claim, answer: "Answer") -> None:
        assert claim in self.held or claim in self.existing, f"{claim} is gone and was prepared"
        assert answer.devices == claim.devices, f"{claim} was given {answer.devices}"
        assert claim.answer in (b"", answer.wire), f"{claim} was answered in another way before"
        claim.answer = answer.wire
        self.held.add(claim)

    def _must_be_refused(self, claim: Claim, error: str) -> None:
        if claim not in self.existing:
            assert error.startswith(GONE), f"{claim} is gone and was answered {error}"
            return
        holders = self.obstacles(claim)
        assert self.must_wait(claim), f"{claim} was free and was answered {error}"
        assert error.startswith("DeviceInUse: "), f"{claim} has to wait and was answered {error}"
        assert any(f"held by claim default/{other.ref.name}" in error for other in holders), (
            f"{claim} waits for {holders} and was answered {error}"
        )


@dataclass(frozen=True)
class Answer:
    """What the kubelet was told of a claim: devices, or an error; `wire` is all of it."""

    error: str
    devices: tuple[str, ...]
    wire: bytes
