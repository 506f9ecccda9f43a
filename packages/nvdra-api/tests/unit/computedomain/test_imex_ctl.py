# SPDX-License-Identifier: Apache-2.0
"""Answers of nvidia-imex-ctl."""

import pytest
from nvdra_runtime.computedomain import imex_ctl


def test_ready_is_the_word_alone() -> None:
    assert imex_ctl.not_ready_reason(0, b"READY\n") == ""


@pytest.mark.parametrize(
    ("code", "output", "says"),
    [
        (0, b"UNAVAILABLE\n", "nvidia-imex says UNAVAILABLE"),
        (255, b"", "nvidia-imex-ctl ended with 255"),
        (0, b"INITIALIZING\n", "nvidia-imex says INITIALIZING"),
        (0, b"READY", "nvidia-imex says READY"),
        (0, b"READY\nREADY\n", "nvidia-imex says READY READY"),
        (0, b"warning: old\nREADY\n", "nvidia-imex says warning: old READY"),
        (0, b"READY \n", "nvidia-imex says READY"),
        (0, b"ready\n", "nvidia-imex says ready"),
        (0, b"", "nvidia-imex-ctl printed nothing"),
        (1, b"READY\n", "nvidia-imex-ctl ended with 1: READY"),
        (1, b"cannot connect\n", "nvidia-imex-ctl ended with 1: cannot connect"),
        (-9, b"", "nvidia-imex-ctl ended with -9"),
        (0, b"\xff\n", "nvidia-imex says \ufffd"),
    ],
)
def test_anything_else_is_not(code: int, output: bytes, says: str) -> None:
    assert imex_ctl.not_ready_reason(code, output) == says


def test_a_flood_of_words_is_cut() -> None:
    assert len(imex_ctl.not_ready_reason(0, b"x" * 100_000)) < 300


@pytest.mark.parametrize(
    ("code", "output", "is_started"),
    [
        (0, b"WAITING_FOR_RECOVERY\n", True),
        (0, b"INIT_GPU\n", True),
        (0, b"INITIALIZING\n", False),
        (0, b"", False),
        (1, b"WAITING_FOR_RECOVERY\n", False),
    ],
)
def test_an_imex_that_says_another_word_than_initializing_has_started(
    code: int, output: bytes, is_started: bool
) -> None:
    assert imex_ctl.is_started(imex_ctl.not_ready_reason(code, output)) == is_started


@pytest.mark.parametrize(
    ("code", "output", "is_answer"),
    [
        (0, b"READY\n", True),
        (0, b"INITIALIZING\n", True),
        (0, b"WAITING_FOR_PEERS\n", True),
        (0, b"", False),
        (255, b"no IMEX daemon answers", False),
    ],
)
def test_every_word_of_imex_is_an_answer(code: int, output: bytes, is_answer: bool) -> None:
    assert imex_ctl.is_answer(imex_ctl.not_ready_reason(code, output)) == is_answer
    assert not imex_ctl.is_answer("nvidia-imex-ctl gave no answer within 5 s")
