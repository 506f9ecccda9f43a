# SPDX-License-Identifier: Apache-2.0
"""The lock that says which instance of a driver is active on this node."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from nvdra_api.errors import PermanentError
from nvdra_runtime.node import instance_lock
from nvdra_runtime.node.instance_lock import InstanceLock

HOLDER = """
import sys
from pathlib import Path
from nvdra_runtime.node.instance_lock import InstanceLock
with InstanceLock(Path(sys.argv[1]), {"pid": "4711", "pod": "plugin-x"}):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "instance.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(PermanentError, match="pid 4711, pod plugin-x"),
            InstanceLock(path, {"pid": "1", "pod": "plugin-y"}),
        ):
            pass
        holder.kill()
        holder.wait()
        with InstanceLock(path, {"pid": "1", "pod": "plugin-y"}):
            assert "plugin-y" in path.read_text()


def test_a_second_lock_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "instance.lock"
    with InstanceLock(path, {"pid": "1"}):
        with pytest.raises(PermanentError, match="pid 1"), InstanceLock(path, {"pid": "2"}):
            pass
        assert "1" in path.read_text()
    with InstanceLock(path, {"pid": "3"}):
        pass


def test_a_holder_that_has_not_said_who_it_is_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "instance.lock"
    with InstanceLock(path, {}):
        path.write_text("")
        with pytest.raises(PermanentError, match="unknown"), InstanceLock(path, {"pid": "2"}):
            pass


def test_a_shorter_name_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "instance.lock"
    with InstanceLock(path, {"pod": "a-very-long-name"}):
        pass
    with InstanceLock(path, {"pod": "b"}):
        assert path.read_text() == '{"pod": "b"}'


def test_a_lock_whose_file_was_taken_away_is_taken_anew(tmp_path: Path) -> None:
    path = tmp_path / "plugin" / "instance.lock"
    path.parent.mkdir()
    with InstanceLock(path, {"pid": "1"}) as lock:
        lock.reacquire_if_replaced()
        path.unlink()
        path.parent.rmdir()
        lock.reacquire_if_replaced()
        with pytest.raises(PermanentError, match="pid 1"), InstanceLock(path, {"pid": "2"}):
            pass
    with InstanceLock(path, {"pid": "3"}):
        pass


def test_whoever_locks_a_new_file_first_stays(tmp_path: Path) -> None:
    path = tmp_path / "instance.lock"
    with InstanceLock(path, {"pid": "1"}) as lock:
        path.unlink()
        with InstanceLock(path, {"pid": "2"}), pytest.raises(PermanentError, match="pid 2"):
            lock.reacquire_if_replaced()


def test_who_stands_by_is_told_the_holders_socket_and_gets_the_lock_when_it_is_free(
    tmp_path: Path,
) -> None:
    path = tmp_path / "instance.lock"
    active = InstanceLock(path, {"pid": "1", "pod": "a", "socket": "/p/dra.sock"})
    standby = InstanceLock(path, {"pid": "2"})
    assert active.try_acquire()
    assert active.try_acquire()
    assert not standby.try_acquire()
    holder = standby.read_holder()
    assert holder == {"pid": "1", "pod": "a", "socket": "/p/dra.sock"}
    assert instance_lock.describe_holder(holder) == "pid 1, pod a"
    active.release()
    standby.holder["socket"] = "/p/dra-b.sock"
    assert standby.try_acquire()
    assert json.loads(path.read_text()) == {"pid": "2", "socket": "/p/dra-b.sock"}
    standby.release()
    standby.release()


@pytest.mark.parametrize("content", ["", "{", "[1]", "7"])
def test_a_lock_file_that_says_nothing_names_nobody(tmp_path: Path, content: str) -> None:
    path = tmp_path / "instance.lock"
    path.write_text(content)
    assert InstanceLock(path, {}).read_holder() == {}
    assert instance_lock.describe_holder({}) == "unknown"
