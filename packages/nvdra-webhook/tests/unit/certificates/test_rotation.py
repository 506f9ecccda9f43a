# SPDX-License-Identifier: Apache-2.0
"""When authorities and certificates change; an API server always trusts what is served."""

from datetime import UTC, datetime, timedelta

from nvdra_webhook.certificates import authority, rotation
from nvdra_webhook.certificates.rotation import Keys

START = datetime(2026, 9, 1, tzinfo=UTC)
NAMES = frozenset(("webhook.nvdra.svc",))


def step(keys: Keys, now: datetime, published: bytes | None = None) -> Keys:
    return rotation.next_keys(keys, NAMES, keys.bundle if published is None else published, now)


def is_trusted(keys: Keys, bundle: bytes) -> bool:
    assert keys.serving is not None
    return any(
        each.has_signed(keys.serving) for each in keys.authorities if each.certificate_pem in bundle
    )


def test_the_first_look_makes_everything_and_the_next_ones_nothing() -> None:
    keys = step(Keys(), START, b"")
    assert len(keys.authorities) == 1
    assert keys.serving is not None
    assert keys.serving.dns_names == NAMES
    assert is_trusted(keys, keys.bundle)
    for days in (0, 1, 30, 59):
        assert step(keys, START + timedelta(days=days)) == keys


def test_a_certificate_is_renewed_after_two_thirds_of_its_life() -> None:
    keys = step(Keys(), START, b"")
    later = step(keys, START + timedelta(days=61))
    assert later.authorities == keys.authorities
    assert later.serving != keys.serving


def test_other_names_give_another_certificate() -> None:
    keys = step(Keys(), START, b"")
    named = rotation.next_keys(keys, ["other.svc"], keys.bundle, START)
    assert named.serving is not None
    assert named.serving.dns_names == {"other.svc"}
    assert named.authorities == keys.authorities


def test_over_five_years_what_is_served_was_always_published_before() -> None:
    keys, now = step(Keys(), START, b""), START
    seen = published = keys.bundle
    authorities = set(keys.authorities)
    for _ in range(5 * 365 // 3):
        now += timedelta(days=3)
        for minutes in (0, 5, 15):
            at = now + timedelta(minutes=minutes)
            data = keys.to_data()
            read, problems = rotation.from_data(data, at)
            assert not problems
            keys = rotation.next_keys(read, NAMES, published, at)
            assert is_trusted(keys, seen), at
            assert keys.serving is not None
            assert keys.serving.not_after > at + timedelta(days=14)
            seen, published = published, keys.bundle
            authorities.update(keys.authorities)
        assert len(keys.authorities) <= 2
    assert len(authorities) == 4


def test_an_authority_does_not_sign_before_it_is_published() -> None:
    old = authority.create(START - timedelta(days=500))
    serving = authority.issue(old, NAMES, START)
    keys = step(Keys((old,), serving), START)
    assert len(keys.authorities) == 2
    late = START + timedelta(hours=5)
    unpublished = step(keys, late, published=old.certificate_pem)
    assert unpublished.serving == serving
    published = step(keys, late)
    assert published.serving is not None
    assert keys.authorities[1].has_signed(published.serving)
    assert len(published.authorities) == 2
    assert len(step(published, late + timedelta(days=1)).authorities) == 1


def test_a_damaged_secret_is_replaced_part_by_part() -> None:
    keys = step(Keys(), START, b"")
    for name in (rotation.CA_KEYS, rotation.CERTIFICATE, rotation.KEY, rotation.CA_CERTIFICATES):
        for bad in ("", "!!!", "Z2FyYmFnZQ=="):
            found, problems = rotation.from_data({**keys.to_data(), name: bad}, START)
            assert problems or found != keys, name
            repaired = step(found, START)
            assert is_trusted(repaired, repaired.bundle)


def test_the_key_is_in_no_representation() -> None:
    keys = step(Keys(), START, b"")
    assert "PRIVATE" not in repr(keys)
