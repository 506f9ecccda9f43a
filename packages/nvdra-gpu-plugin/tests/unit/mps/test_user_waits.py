# SPDX-License-Identifier: Apache-2.0
"""Which user waits for which, by the lines of NVIDIA's daemon."""

import pytest
from nvdra_gpu_plugin.mps.user_waits import UserWait, UserWaits

FIRST = (
    "NEW CLIENT 11801 from user 1000: Server is not ready, push client to pending list",
    "Starting new server 11803 for user 1000",
    "NEW SERVER 11803: Ready",
)
SECOND = "NEW CLIENT 11811 from user 0: Server is not ready, push client to pending list"
WAIT = UserWait(waiting=0, serving=1000)


def seen(*lines: str) -> UserWaits:
    """What a daemon has said, all at once."""
    found = UserWaits()
    for line in lines:
        found.observe(f"[2026-05-31 23:48:21.671 Control 11107] {line}\n".encode(), 0.0)
    return found


def test_a_user_that_waits_for_another_one_is_known_after_ten_seconds() -> None:
    found = seen(*FIRST, SECOND)
    assert [found.current(now) for now in (0.0, 9.9, 10.0, 60.0)] == [None, None, WAIT, WAIT]


@pytest.mark.parametrize(
    "lines",
    [
        FIRST,
        (*FIRST, FIRST[0]),  # a client that comes before the server of its user is ready
        (*FIRST, "NEW CLIENT 11805 from user 1000: Server already exists"),
        (*FIRST, SECOND, "Starting new server 11820 for user 0"),
        (SECOND, FIRST[0]),  # the first client's server is not yet started
        (*FIRST, f"NEW CLIENT 1 from user {'9' * 4000}: Server is not ready"),
    ],
)
def test_who_has_a_server_or_gets_one_does_not_wait(lines: tuple[str, ...]) -> None:
    assert seen(*lines).current(60.0) is None


def test_users_that_take_turns_wait_for_each_other() -> None:
    found = seen(*FIRST, SECOND, "Starting new server 11820 for user 0", FIRST[0])
    assert found.current(60.0) == UserWait(waiting=1000, serving=0)
