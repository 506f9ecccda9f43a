# SPDX-License-Identifier: Apache-2.0
"""The property test's model accuses a plugin that is wrong."""

import pytest
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.crash_campaigns import claim_model
from nvdra_testing.crash_campaigns.claim_model import ClaimModel, ModelClaim, PrepareAnswer

REFUSAL = "DeviceInUse: gpu-0 is held by claim default/a"


def claim(name: str, *devices: str, is_admin: bool = False) -> ModelClaim:
    return ModelClaim(ClaimRef("default", name, ClaimUID(f"uid-{name}")), devices, is_admin)


def answered(books: ClaimModel, asked: ModelClaim, error: str = "") -> None:
    devices = () if error else asked.devices
    books.check_prepare([asked], {asked.ref.uid: PrepareAnswer(error, devices, b"wire")})


@pytest.fixture
def first() -> ModelClaim:
    return claim("a", "gpu-0")


@pytest.fixture
def books(first: ModelClaim) -> ClaimModel:
    """The first claim is held."""
    books = ClaimModel(existing={first}, known_to_kubelet={first})
    answered(books, first)
    return books


def test_shares_of_one_gpu_exclude_the_whole_and_the_same_share_alone() -> None:
    one, other, same, whole = (claim(name, "gpu-0") for name in "abcd")
    one.shares, other.shares, same.shares = ("1",), ("2",), ("1",)
    assert not one.excludes(other)
    assert one.excludes(same)
    assert one.excludes(whole)
    assert whole.excludes(other)
    books = ClaimModel(existing={one})
    with pytest.raises(AssertionError, match="was given shares"):
        answered(books, one)


def test_a_gpu_that_two_claims_hold_is_noticed(books: ClaimModel) -> None:
    second = claim("b", "gpu-0")
    books.existing.add(second)
    answered(books, second)
    with pytest.raises(AssertionError, match="held twice"):
        books.check_records(["uid-a", "uid-b"])


def test_a_claim_that_is_refused_for_nothing_is_noticed(books: ClaimModel) -> None:
    other = claim("b", "gpu-1")
    books.existing.add(other)
    with pytest.raises(AssertionError, match="was free"):
        answered(books, other, REFUSAL)


def test_a_refusal_that_names_another_holder_is_noticed(books: ClaimModel) -> None:
    other = claim("b", "gpu-0")
    books.existing.add(other)
    answered(books, other, REFUSAL)
    with pytest.raises(AssertionError, match="waits for"):
        answered(books, other, "DeviceInUse: gpu-0 is held by claim default/c")


def test_a_record_that_is_lost_is_noticed_unless_its_claim_is_gone(
    books: ClaimModel, first: ModelClaim
) -> None:
    with pytest.raises(AssertionError, match="has no record"):
        books.check_records([])
    books.existing.clear()
    with pytest.raises(AssertionError, match="has no record"):
        books.check_records([])  # a pod may use it still
    books.known_to_kubelet.clear()
    books.check_records([])
    assert first not in books.prepared


def test_a_record_of_a_claim_that_was_let_go_is_noticed(
    books: ClaimModel, first: ModelClaim
) -> None:
    books.prepared.discard(first)
    with pytest.raises(AssertionError, match="held by nobody"):
        books.check_records(["uid-a"])


def test_an_admin_claim_is_beside_any_other(books: ClaimModel) -> None:
    admin = claim("b", "gpu-0", is_admin=True)
    books.existing.add(admin)
    answered(books, admin)
    books.check_records(["uid-a", "uid-b"])


def test_another_answer_for_the_same_claim_is_noticed(books: ClaimModel, first: ModelClaim) -> None:
    with pytest.raises(AssertionError, match="in another way"):
        books.check_prepare([first], {first.ref.uid: PrepareAnswer("", first.devices, b"other")})


def test_shares_that_want_other_time_slices_exclude_each_other(books: ClaimModel) -> None:
    one, other, same = (claim(name, "gpu-1") for name in "bcd")
    one.shares, other.shares, same.shares = ("1",), ("2",), ("3",)
    one.interval = same.interval = "Long"
    assert one.excludes(other)
    assert not one.excludes(same)


def test_a_claim_of_a_gpu_that_is_lost_must_be_refused(
    books: ClaimModel, first: ModelClaim
) -> None:
    books.away = {"gpu-0"}
    answered(books, first, "DeviceUnhealthy: gpu-0 does not work")
    with pytest.raises(AssertionError, match="do not work"):
        answered(books, first)
    with pytest.raises(AssertionError, match="was answered Internal"):
        answered(books, first, "Internal: oops")


def test_an_unprepare_leaves_something_on_a_gpu_that_does_not_work_and_on_no_other(
    books: ClaimModel, first: ModelClaim
) -> None:
    books.forget(first)
    assert not books.undoing
    books.prepared.add(first)
    books.away = {"gpu-0"}
    books.forget(first)
    assert not books.prepared
    books.check_records([], ["uid-a"])
    assert books.undoing == {first}
    assert books.is_uncertain(claim("b", "gpu-0"))
    books.check_records([])
    assert not books.undoing


def test_steps_that_nobody_undoes_are_noticed(books: ClaimModel) -> None:
    with pytest.raises(AssertionError, match="neither done nor undone"):
        books.check_records(["uid-a"], ["uid-b"])


def test_the_gpus_of_a_claim_with_one_that_does_not_work_are_unsettled() -> None:
    both, other = claim("a", "gpu-0-mig-1g10gb-19-0", "gpu-1"), claim("b", "gpu-2")
    books = ClaimModel(prepared={both, other}, away={"gpu-1"})
    assert books.unsettled_gpus == {"gpu-0", "gpu-1"}
    assert claim_model.instance_of("gpu-0-mig-1g10gb-19-0") == ("1g.10gb", 0)


def test_what_a_monitor_keeps_is_left_over_and_keeps_the_gpu_unsettled() -> None:
    made = claim("a", "gpu-0-mig-1g10gb-19-0")
    made.made = made.devices
    whole = claim("b", "gpu-1")
    books = ClaimModel(existing={made, whole}, prepared={made, whole}, monitored={"gpu-0", "gpu-1"})
    assert books.unsettled_gpus == {"gpu-0", "gpu-1"}
    for each in (made, whole):
        books.forget(each)
    books.check_records([], ["uid-a"])
    assert books.undoing == {made}
    books.monitored.clear()
    assert books.is_uncertain(claim("c", "gpu-0"))


def test_a_hostile_claim_that_is_not_refused_is_noticed(books: ClaimModel) -> None:
    hostile = claim("b", "gpu-0")
    hostile.is_hostile = True
    books.existing.add(hostile)
    assert not books.conflicting_claims(hostile)
    answered(books, hostile, "InvalidConfig: opaque.parameters: nested too deep")
    with pytest.raises(AssertionError, match="was answered devices"):
        answered(books, hostile)
    with pytest.raises(AssertionError, match="was answered DeviceInUse"):
        answered(books, hostile, REFUSAL)
