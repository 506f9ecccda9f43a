"""The property test's model accuses a plugin that is wrong."""

import pytest
from campaign.books import Answer, Books, Claim
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.ids import ClaimUID

REFUSAL = "DeviceInUse: gpu-0 is held by claim default/a"


def claim(name: str, *devices: str, is_admin: bool = False) -> Claim:
    return Claim(ClaimRef("default", name, ClaimUID(f"uid-{name}")), devices, is_admin)


def answered(books: Books, asked: Claim, error: str = "") -> None:
    devices = () if error else asked.devices
    books.note_prepared([asked], {asked.ref.uid: Answer(error, devices, b"wire")})


@pytest.fixture
def first() -> Claim:
    return claim("a", "gpu-0")


@pytest.fixture
def books(first: Claim) -> Books:
    """The first claim is held."""
    books = Books(existing={first}, noted={first})
    answered(books, first)
    return books


def test_a_gpu_that_two_claims_hold_is_noticed(books: Books) -> None:
    second = claim("b", "gpu-0")
    books.existing.add(second)
    answered(books, second)
    with pytest.raises(AssertionError, match="held twice"):
        books.note_records(["uid-a", "uid-b"])


def test_a_claim_that_is_refused_for_nothing_is_noticed(books: Books) -> None:
    other = claim("b", "gpu-1")
    books.existing.add(other)
    with pytest.raises(AssertionError, match="was free"):
        answered(books, other, REFUSAL)


def test_a_refusal_that_names_another_holder_is_noticed(books: Books) -> None:
    other = claim("b", "gpu-0")
    books.existing.add(other)
    answered(books, other, REFUSAL)
    with pytest.raises(AssertionError, match="waits for"):
        answered(books, other, "DeviceInUse: gpu-0 is held by claim default/c")


def test_a_record_that_is_lost_is_noticed_unless_its_claim_is_gone(
    books: Books, first: Claim
) -> None:
    with pytest.raises(AssertionError, match="has no record"):
        books.note_records([])
    books.existing.clear()
    with pytest.raises(AssertionError, match="has no record"):
        books.note_records([])  # a pod may use it still
    books.noted.clear()
    books.note_records([])
    assert first not in books.held


def test_a_record_of_a_claim_that_was_let_go_is_noticed(books: Books, first: Claim) -> None:
    books.held.discard(first)
    with pytest.raises(AssertionError, match="held by nobody"):
        books.note_records(["uid-a"])


def test_an_admin_claim_is_beside_any_other(books: Books) -> None:
    admin = claim("b", "gpu-0", is_admin=True)
    books.existing.add(admin)
    answered(books, admin)
    books.note_records(["uid-a", "uid-b"])


def test_another_answer_for_the_same_claim_is_noticed(books: Books, first: Claim) -> None:
    with pytest.raises(AssertionError, match="in another way"):
        books.note_prepared([first], {first.ref.uid: Answer("", first.devices, b"other")})
