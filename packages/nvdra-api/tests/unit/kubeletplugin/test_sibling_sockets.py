# SPDX-License-Identifier: Apache-2.0
"""The sockets of other instances: dead ones are removed, served ones never."""

import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from nvdra_runtime.kubeletplugin import sibling_sockets
from nvdra_runtime.kubeletplugin.registration import SocketPaths
from nvdra_runtime.kubeletplugin.sibling_sockets import SiblingSockets
from nvdra_runtime.kubeletplugin.sockets import SocketID

DRIVER = "gpu.nvidia.com"
UID = "ad4af911-5bcd-47c5-a554-f35cea869472"


def bind(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    return bound


def leave_dead(path: Path) -> Path:
    bind(path).close()
    return path


@pytest.fixture
def root() -> Iterator[Path]:
    # The path of a socket has at most 107 bytes: pytest's own directories are too long.
    with TemporaryDirectory() as directory:
        for name in ("p", "r"):
            Path(directory, name).mkdir()
        yield Path(directory)


@pytest.fixture
def siblings(root: Path) -> SiblingSockets:
    return SiblingSockets(DRIVER, root / "p", root / "r")


async def test_a_socket_is_removed_when_it_is_dead_for_the_second_time(
    siblings: SiblingSockets, root: Path
) -> None:
    dead = [
        leave_dead(root / "r" / f"{DRIVER}-{UID}-reg.sock"),
        leave_dead(root / "p" / f"dra-{UID}.sock"),
        leave_dead(root / "p" / "dra.sock"),
    ]
    others = [
        leave_dead(root / "r" / f"csi.example.com-{UID}-reg.sock"),
        leave_dead(root / "p" / "other.sock"),
    ]
    file = root / "p" / "dra-file.sock"
    file.touch()
    await siblings.remove_dead()
    assert all(path.exists() for path in dead)
    await siblings.remove_dead()
    assert not any(path.exists() for path in dead)
    assert all(path.exists() for path in (*others, file))


async def test_a_socket_that_is_served_or_ours_or_made_again_is_left(
    siblings: SiblingSockets, root: Path
) -> None:
    served, ours, remade = (root / "p" / f"dra-{name}.sock" for name in ("s", "o", "r"))
    with bind(served) as living:
        living.listen()
        leave_dead(ours)
        leave_dead(remade)
        siblings.set_own(SocketPaths(str(ours), "/r/x"))
        await siblings.remove_dead()
        leave_dead(root / "p" / "hidden").rename(remade)  # as the plugin makes its sockets
        await siblings.remove_dead()
        assert all(path.exists() for path in (served, ours, remade))
        await siblings.remove_dead()
        assert not remade.exists()
        assert await siblings.newest_served() == served
        assert siblings.newest() == served
    assert await siblings.newest_served() is None


async def test_missing_directories_have_no_sockets(tmp_path: Path) -> None:
    siblings = SiblingSockets(DRIVER, tmp_path / "p", tmp_path / "r")
    await siblings.remove_dead()
    assert siblings.newest() is None
    assert await siblings.newest_served() is None


def test_only_what_was_the_same_dead_socket_before_is_removed() -> None:
    a, b, c = (Path(name) for name in "abc")
    before = {a: SocketID(1, 1), b: SocketID(1, 2)}
    now = {b: SocketID(1, 2), a: SocketID(1, 9), c: SocketID(1, 3)}
    assert sibling_sockets.repeatedly_dead(before, now) == [b]
