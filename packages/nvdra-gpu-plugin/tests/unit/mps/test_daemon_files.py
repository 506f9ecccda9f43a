# SPDX-License-Identifier: Apache-2.0
"""What a client can do to the directories of its daemon is bounded, and harms no other claim."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvdra_gpu_plugin.devices import mps_layout
from nvdra_gpu_plugin.mps import mounts
from nvdra_gpu_plugin.mps.daemon_files import DaemonDirectory
from nvdra_testing.node import directories

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a tmpfs is mounted")

SHM_KIB = 1024
DEEP = 3_000
MIB = 1 << 20
LABEL = b"system_u:object_r:container_file_t:s0\0"
"""The kubelet's label of its plugins' directory, which the files below inherit."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonDirectory]:
    found = DaemonDirectory(tmp_path / "uid-1-abcde")
    found.allow("run", "{}", SHM_KIB)
    yield found
    found.unmount()


def pipe(daemon: DaemonDirectory) -> Path:
    return daemon.path / mps_layout.PIPE


def shm(daemon: DaemonDirectory) -> Path:
    return daemon.path / mps_layout.SHM


def test_each_directory_of_clients_is_a_file_system_of_its_own(daemon: DaemonDirectory) -> None:
    table = Path("/proc/self/mounts").read_text().splitlines()
    (found,) = (line.split() for line in table if f" {pipe(daemon)} " in line)
    assert found[0] == "mps-pipe"
    limits = {"nosuid", "nodev", "noexec", "size=1024k", "nr_inodes=64", "mode=755"}
    assert limits <= set(found[3].split(","))
    assert shm(daemon).is_mount()
    assert pipe(daemon).stat().st_mode & 0o777 == 0o755
    assert shm(daemon).stat().st_mode & 0o7777 == 0o1777


def test_clients_may_use_each_directory_where_selinux_is_enforced(tmp_path: Path) -> None:
    for name in (mps_layout.PIPE, mps_layout.SHM):
        (tmp_path / name).mkdir()
        os.setxattr(tmp_path / name, "security.selinux", LABEL)
    daemon = DaemonDirectory(tmp_path)
    try:
        daemon.allow("run", "{}", SHM_KIB)
        for path in (pipe(daemon), shm(daemon)):
            assert path.is_mount()
            assert os.getxattr(path, "security.selinux") == LABEL
    finally:
        daemon.unmount()


def test_all_files_of_a_claims_pods_have_one_label_where_selinux_is_enforced() -> None:
    """No kernel of the tests has SELinux: what it would be asked for is compared."""
    assert mounts.attempts("size=1m", LABEL) == (
        b'size=1m,context="system_u:object_r:container_file_t:s0"',
        b"size=1m",
    )
    assert mounts.attempts("size=1m", b"") == (b"size=1m",)


def fill(file: Path, mebibytes: int) -> None:
    with file.open("wb") as opened:
        for _ in range(mebibytes):
            opened.write(b"x" * MIB)
            opened.flush()


def link(directory: Path, count: int) -> None:
    (directory / "first").touch()
    for number in range(count):
        os.link(directory / "first", directory / str(number))


def test_space_ends_at_the_size_of_the_file_system(daemon: DaemonDirectory) -> None:
    for directory in (pipe(daemon), shm(daemon)):
        with pytest.raises(OSError, match="No space"):
            fill(directory / "file", 2 + (SHM_KIB >> 10))


def test_files_links_and_directories_end_at_the_number_of_inodes(daemon: DaemonDirectory) -> None:
    for directory, count in ((pipe(daemon), 64), (shm(daemon), 65_536)):
        with pytest.raises(OSError, match="No space"):
            link(directory, count)


def test_links_are_not_followed(daemon: DaemonDirectory, tmp_path: Path) -> None:
    if not mounts.restrict_pipe(pipe(daemon)):
        pytest.skip("the kernel is older than 5.10")
    (tmp_path / "shadow").write_text("secret")
    (pipe(daemon) / "log").symlink_to(tmp_path / "shadow")
    with pytest.raises(OSError, match="symbolic links"):
        (pipe(daemon) / "log").write_text("line")
    assert (tmp_path / "shadow").read_text() == "secret"


def test_all_that_clients_have_made_goes_at_once(daemon: DaemonDirectory) -> None:
    (pipe(daemon) / "a/b").mkdir(parents=True)
    (shm(daemon) / "a/b").mkdir(parents=True)
    daemon.forbid()
    assert daemon.remove()
    assert not daemon.path.exists()


def test_a_directory_of_an_earlier_version_stays_as_it_is_until_the_node_boots(
    daemon: DaemonDirectory,
) -> None:
    mounts.unmount(pipe(daemon))
    (pipe(daemon) / "control").touch()
    daemon.allow("run", "{}", SHM_KIB)
    assert (pipe(daemon) / "control").exists(), "clients and the daemon use it"
    daemon.unmount()
    daemon.allow("run", "{}", SHM_KIB)
    assert list(pipe(daemon).iterdir()) == []


def test_a_directory_of_an_earlier_version_is_removed_whatever_is_in_it(
    daemon: DaemonDirectory,
) -> None:
    mounts.unmount(pipe(daemon))
    directories.nest(pipe(daemon), DEEP)
    daemon.forbid()
    while not daemon.remove():
        assert daemon.is_forbidden
    assert not daemon.path.exists()
