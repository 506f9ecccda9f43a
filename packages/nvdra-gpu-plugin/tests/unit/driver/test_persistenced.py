# SPDX-License-Identifier: Apache-2.0
"""The calls of nvidia-persistenced, to a socket that answers with given bytes."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.driver import persistenced
from nvdra_gpu_plugin.driver.persistenced import PersistencedError
from nvdra_runtime.node.host import Host

GPU = PciAddress("0001:3b:02.0")
SUCCESS, NOT_FOUND, DRIVER = 0, 2, 3
CALL = (1, 0, 2, 35006, 1)
ACCEPTED = (1, 1, 0, 0, 0, 0)

Serve = Callable[[bytes], Host]


def record(*words: int, mark: int = 1 << 31) -> bytes:
    """A message of the protocol."""
    message = struct.pack(f">{len(words)}I", *words)
    return struct.pack(">I", mark | len(message)) + message


@pytest.fixture
def calls() -> list[bytes]:
    """What the daemon was asked."""
    return []


@pytest.fixture
def serve(tmp_path: Path, calls: list[bytes]) -> Iterator[Serve]:
    """Has a daemon that answers each call with these bytes, and closes the connection."""
    with ExitStack() as stack:

        def answer(listening: socket.socket, reply: bytes) -> None:
            asked, _ = listening.accept()
            with asked:
                calls.append(asked.recv(1024))
                asked.sendall(reply)

        def make(reply: bytes) -> Host:
            directory = tmp_path / "run/nvidia-persistenced"
            directory.mkdir(parents=True)
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(str(directory / "socket"))
            listening.listen()
            thread = threading.Thread(target=answer, args=(listening, reply), daemon=True)
            thread.start()
            stack.callback(thread.join, 5)
            return Host(driver_root=tmp_path)

        yield make


def test_the_mode_of_a_gpu_is_asked_for_by_its_address(serve: Serve, calls: list[bytes]) -> None:
    assert persistenced.is_keeping(serve(record(*ACCEPTED, SUCCESS, 1)), GPU) is True
    assert calls == [record(*CALL, 2, 0, 0, 0, 0, 1, 0x3B, 2, 0)]


def test_a_mode_that_is_off(serve: Serve) -> None:
    assert persistenced.is_keeping(serve(record(*ACCEPTED, SUCCESS, 0)), GPU) is False


@pytest.mark.parametrize("is_on", [True, False])
def test_a_mode_is_set(serve: Serve, calls: list[bytes], is_on: bool) -> None:
    assert persistenced.keep(serve(record(*ACCEPTED, SUCCESS)), GPU, is_on=is_on)
    assert calls == [record(*CALL, 1, 0, 0, 0, 0, 1, 0x3B, 2, 0, int(is_on))]


def test_a_gpu_that_came_after_the_daemon_is_not_its_own(serve: Serve) -> None:
    assert not persistenced.keep(serve(record(*ACCEPTED, NOT_FOUND)), GPU, is_on=True)


@pytest.mark.parametrize(
    "reply",
    [
        record(*ACCEPTED, DRIVER),
        record(*ACCEPTED, SUCCESS),  # and no mode
        record(1, 1, 0, 0, 0, 2, 1, 2),  # another version of the program
        record(1, 1, 1, 0, 0, 0),  # denied
        record(2, *ACCEPTED[1:], SUCCESS, 1),  # to another call
        record(*ACCEPTED, SUCCESS, 1, mark=0),  # in several fragments
        record(*ACCEPTED, SUCCESS, 1)[:-2],  # ends too early
        struct.pack(">I", 1 << 31 | 1 << 20),
        b"",
    ],
)
def test_what_is_no_answer_is_an_error(serve: Serve, reply: bytes) -> None:
    with pytest.raises(PersistencedError):
        persistenced.is_keeping(serve(reply), GPU)


def test_without_a_daemon_nobody_answers(tmp_path: Path) -> None:
    assert persistenced.is_keeping(Host(driver_root=tmp_path), GPU) is None
    assert not persistenced.keep(Host(driver_root=tmp_path), GPU, is_on=True)


def test_nobody_listens_at_the_socket_of_one_that_was_killed(tmp_path: Path) -> None:
    directory = tmp_path / "var/run/nvidia-persistenced"
    directory.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(directory / "socket"))
    assert persistenced.is_keeping(Host(driver_root=tmp_path), GPU) is None


def test_the_path_may_be_longer_than_the_address_of_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / ("r" * 120)
    directory = root / "run/nvidia-persistenced"
    directory.mkdir(parents=True)
    monkeypatch.chdir(directory)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind("socket")
        left.listen()
        threading.Thread(target=lambda: left.accept()[0].close(), daemon=True).start()
        with pytest.raises(PersistencedError, match="does not answer"):
            persistenced.is_keeping(Host(driver_root=root), GPU)
