# SPDX-License-Identifier: Apache-2.0
"""Writing the files of IMEX to a real disk."""

from pathlib import Path

import pytest
from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import NodeName
from nvdra_imex_daemon.configuration.dns_names import SHARED
from nvdra_imex_daemon.configuration.imex_files import ImexFiles
from nvdra_imex_daemon.configuration.peers import Peer

KUBELETS = b"# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\xff latin\n"


@pytest.fixture
def files(tmp_path: Path) -> ImexFiles:
    (tmp_path / "imexd.cfg.tmpl").write_text("IP={{ .IMEXCmdBindInterfaceIP }}\n")
    (tmp_path / "hosts").write_bytes(KUBELETS)
    return files_in(tmp_path)


def files_in(directory: Path) -> ImexFiles:
    return ImexFiles(
        template=directory / "imexd.cfg.tmpl",
        config=directory / "imexd.cfg",
        nodes=directory / "nodes.cfg",
        hosts=directory / "hosts",
        pod_ip="10.4.1.7",
        names=SHARED,
        name_count=2,
    )


def peers(*ips: str) -> list[Peer]:
    return [Peer(at, NodeName(f"n{at}"), ip, is_ready=True) for at, ip in enumerate(ips)]


def identity(path: Path) -> tuple[int, int]:
    """Inode and time of the last write: a reader changes neither."""
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns


def test_configuration_and_names_are_written_before_the_start(
    files: ImexFiles, tmp_path: Path
) -> None:
    files.write_start_files()
    assert (tmp_path / "imexd.cfg").read_text() == "IP=10.4.1.7\n"
    assert (tmp_path / "imexd.cfg").stat().st_mode & 0o777 == 0o644
    names = (tmp_path / "nodes.cfg").read_text()
    assert names == "compute-domain-daemon-0000\ncompute-domain-daemon-0001\n"


def test_an_unchanged_file_is_not_written(files: ImexFiles, tmp_path: Path) -> None:
    files.write_start_files()
    before = identity(tmp_path / "imexd.cfg")
    files.write_start_files()
    assert identity(tmp_path / "imexd.cfg") == before


def test_a_missing_template_is_named_in_the_error(files: ImexFiles, tmp_path: Path) -> None:
    (tmp_path / "imexd.cfg.tmpl").unlink()
    with pytest.raises(DriverError, match=r"imexd\.cfg\.tmpl: No such file") as refused:
        files.write_start_files()
    assert refused.value.reason is Reason.DAEMON_NOT_READY
    assert "plugin of this node" in refused.value.remedy


def test_the_hosts_file_is_changed_in_place_and_keeps_other_bytes(
    files: ImexFiles, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    before = hosts.stat().st_ino
    assert files.write_hosts(peers("10.4.1.7", "10.4.2.9"))
    assert not files.write_hosts(peers("10.4.1.7", "10.4.2.9"))
    long = hosts.read_bytes()
    assert long.startswith(KUBELETS)
    assert b"10.4.2.9\tcompute-domain-daemon-0001\n" in long
    assert files.write_hosts(peers("10.4.1.7"))
    assert b"10.4.2.9" not in hosts.read_bytes()
    assert hosts.read_bytes().endswith(b"# End of Compute Domain Daemon mappings\n")
    assert hosts.stat().st_ino == before


def test_a_hosts_file_that_cannot_be_written_is_an_error(files: ImexFiles, tmp_path: Path) -> None:
    (tmp_path / "hosts").unlink()
    with pytest.raises(DriverError, match="hosts: No such file"):
        files.write_hosts(peers("10.4.1.7"))


def test_the_list_of_addresses_is_written_only_if_it_changes(
    files: ImexFiles, tmp_path: Path
) -> None:
    assert files.write_addresses(["10.4.1.7", "10.4.2.9"])
    assert not files.write_addresses(["10.4.1.7", "10.4.2.9"])
    assert files.write_addresses(["10.4.2.9", "10.4.1.7"])
    assert (tmp_path / "nodes.cfg").read_text() == "10.4.2.9\n10.4.1.7\n"


def test_what_a_killed_daemon_was_writing_is_removed_but_nothing_of_the_plugin(
    files: ImexFiles, tmp_path: Path
) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    for name in ("imexd.cfg", "nodes.cfg", "place.json"):
        (tmp_path / f".{name}.01234567").touch()
    (tmp_path / ".imexd.cfg.tmpl.01234567").touch()
    files.remove_temporary_files([tmp_path / "place.json"])
    assert {path.name for path in tmp_path.iterdir()} == before | {".imexd.cfg.tmpl.01234567"}


def test_a_directory_that_cannot_be_read_ends_no_daemon(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    files_in(missing).remove_temporary_files([])
    assert not missing.exists()
