# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from nvdra_runtime.process import backoff
from nvdra_runtime.process.backoff import Backoff

CHANCE = st.floats(0, 1, exclude_max=True)


def test_delays_double_up_to_the_ceiling() -> None:
    plain = Backoff(first_s=1, ceiling_s=60, jitter=0)
    assert [plain.delay(n, 0.5) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


@given(st.integers(1, 10**6), CHANCE)
def test_chance_only_shortens_a_delay_and_by_no_more_than_the_jitter(
    failures: int, chance: float
) -> None:
    spread, plain = Backoff(0.5, 30, jitter=0.2), Backoff(0.5, 30, jitter=0)
    longest = plain.delay(failures, 0)
    assert 0.8 * longest <= spread.delay(failures, chance) <= longest <= 30


def test_an_attempt_fits_only_before_the_deadline() -> None:
    assert backoff.fits(2, now=10, deadline=12.1)
    assert not backoff.fits(2, now=10, deadline=12)
