# SPDX-License-Identifier: Apache-2.0
"""Pages have a few MiB, whatever the size and the order of a collection's objects."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from nvdra_runtime.kube import page_limits

LONG = 1_500_000
SIZES = st.lists(
    st.tuples(st.sampled_from([500, 5_000, 250_000, LONG]), st.integers(1, 300)), max_size=6
)


def received(sizes: Sequence[int]) -> list[list[int]]:
    """The sizes of all answers, read in full or not, as the pages of these objects are listed."""
    answers, first, limit = [], 0, page_limits.FIRST_LIMIT
    while first < len(sizes):
        page = list(sizes[first : first + limit])
        answers.append(page)
        if len(page) > 1 and sum(page) > page_limits.MAX_BYTES:
            assert limit > 1
            limit = page_limits.smaller_limit(limit)
            continue
        first += len(page)
        limit = page_limits.next_limit(limit, len(page), sum(page))
    return answers


def test_small_objects_take_few_requests() -> None:
    assert [len(each) for each in received([5_000] * 1_000)] == [16, 32, 64, 128, 256, 419, 85]
    assert max(len(each) for each in received([100] * 5_000)) == page_limits.MAX_LIMIT


def test_objects_of_the_largest_size_come_one_by_one() -> None:
    assert [len(each) for each in received([LONG] * 22)] == [16, 4, *[1] * 18]


def test_large_objects_after_small_ones_are_asked_for_again_in_fewer() -> None:
    answers = received([500] * 1_000 + [LONG] * 8)
    tail = [len(each) for each in answers if LONG in each]
    assert tail[-1] <= 2
    assert sum(tail) < 500 + 8 * 4


@given(SIZES)
def test_every_list_ends_and_half_of_its_answers_are_of_use(parts: list[tuple[int, int]]) -> None:
    sizes = [size for size, count in parts for _ in range(count)]
    answers = received(sizes)
    kept = [each for each in answers if len(each) == 1 or sum(each) <= page_limits.MAX_BYTES]
    assert [size for each in kept for size in each] == sizes
    assert len(answers) - len(kept) <= len(kept) + 4


def test_a_page_without_objects_or_text_is_followed_by_one_of_at_least_one() -> None:
    assert page_limits.next_limit(16, 0, 0) == 1
    assert page_limits.next_limit(1, 1, 100 << 20) == 1
    assert page_limits.smaller_limit(1) == 1
