# SPDX-License-Identifier: Apache-2.0
"""What an instance that stands by knows, and what its readiness checks say of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from nvdra_runtime.http import probes
from nvdra_runtime.kubeletplugin import standby_state
from nvdra_runtime.kubeletplugin.registration import SocketPaths
from nvdra_runtime.kubeletplugin.standby_state import LockFile, StandbyState

FILE, OTHER_FILE = (1, 10), (1, 11)
FORMER, NEXT = {"pid": "1", "socket": "/p/dra-a.sock"}, {"pid": "2"}
STATE = StandbyState(began=100, identity=FILE, holder=FORMER)
HELD = LockFile(FILE, is_acquired=False, holder=FORMER, is_served=True)
ACQUIRED = LockFile(FILE, is_acquired=True, holder=NEXT, is_served=True)
PATHS = SocketPaths("/p/dra-b.sock", "/r/b-reg.sock")


def test_a_lock_file_that_was_replaced_is_left_alone_for_a_while() -> None:
    assert STATE.lockable(100) == FILE
    for identity in (OTHER_FILE, None):
        state = standby_state.looked(STATE, HELD._replace(identity=identity), 200)
        assert state.lockable(214.9) is None
        assert state.lockable(215) == identity
        same = standby_state.looked(state, HELD._replace(identity=identity), 210)
        assert same.lockable(215) == identity, "the time begins once"


def test_the_former_holder_is_named_until_another_instance_holds_the_lock() -> None:
    assert standby_state.looked(STATE, ACQUIRED, 200).holder == FORMER
    assert standby_state.looked(STATE, HELD._replace(holder={}), 200).holder == FORMER
    assert standby_state.looked(STATE, HELD._replace(holder=NEXT), 200).holder == NEXT


def test_the_active_socket_is_the_holders_or_the_default_one() -> None:
    assert STATE.active_socket(Path("/q")) == Path("/p/dra-a.sock")
    assert replace(STATE, holder=NEXT).active_socket(Path("/q")) == Path("/q/dra.sock")


def test_it_is_known_since_when_the_holder_is_not_served() -> None:
    gone = HELD._replace(is_served=False)
    state = standby_state.looked(STATE, gone, 200)
    assert state.unserved_since == 200
    assert standby_state.looked(state, gone, 300).unserved_since == 200
    assert standby_state.looked(state, ACQUIRED._replace(is_served=False), 300).acquired_at == 300
    assert standby_state.looked(state, HELD, 300).unserved_since is None


@pytest.mark.parametrize(
    ("state", "now", "text", "is_failure"),
    [
        (STATE, 9999, "standing by for another instance of this driver (pid 1); ", False),
        (replace(STATE, lock_problem="no lock"), 101, "no lock", True),
        (replace(STATE, acquired_at=100), 159, "taking over: ", False),
        (replace(STATE, acquired_at=100), 160, "taking over: ", True),
    ],
)
def test_an_instance_is_ready_while_it_stands_by_and_shortly_after(
    state: StandbyState, now: float, text: str, is_failure: bool
) -> None:
    found = standby_state.instance_problem(state, now)
    assert found is not None
    assert found.startswith(text)
    assert probes.is_failure(found) == is_failure


def test_a_look_at_the_lock_ends_its_problem() -> None:
    state = standby_state.looked(replace(STATE, lock_problem="no lock"), HELD, 200)
    assert state.lock_problem == ""


@pytest.mark.parametrize(
    ("state", "text", "is_failure"),
    [
        (STATE, "the kubelet's version is not known: it has not been read yet", True),
        (replace(STATE, version_problem=""), "not registered before it takes over: ", False),
        (replace(STATE, version_problem="", paths=PATHS), "the sockets are being created", True),
    ],
)
def test_an_instance_is_not_ready_before_it_knows_whether_to_register(
    state: StandbyState, text: str, is_failure: bool
) -> None:
    found = standby_state.kubelet_problem(state)
    assert found is not None
    assert found.startswith(text)
    assert probes.is_failure(found) == is_failure


def test_only_an_instance_that_is_registered_needs_slices() -> None:
    assert standby_state.slices_problem(STATE) is None
    registered = replace(STATE, paths=PATHS)
    assert standby_state.slices_problem(registered) is not None
    assert standby_state.slices_problem(replace(registered, has_slices=True)) is None
