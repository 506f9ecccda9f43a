"""The files that IMEX reads, on a real disk."""

from pathlib import Path

import pytest
from nvdra_api.types.errors import DriverError, Reason
from nvdra_api.types.ids import NodeName
from nvdra_imex_daemon.imex_files import ImexFiles
from nvdra_imex_daemon.peers import Peer

KUBELETS = b"# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\xff latin\n"


@pytest.fixture
def files(tmp_path: Path) -> ImexFiles:
    (tmp_path / "imexd.cfg.tmpl").write_text("IP={{ .IMEXCmdBindInterfaceIP }}\n")
    (tmp_path / "hosts").write_bytes(KUBELETS)
    return ImexFiles(
        template=tmp_path / "imexd.cfg.tmpl",
        config=tmp_path / "imexd.cfg",
        nodes=tmp_path / "nodes.cfg",
        hosts_file=tmp_path / "hosts",
        pod_ip="10.4.1.7",
        names=2,
    )


def peers(*ips: str) -> list[Peer]:
    return [Peer(at, NodeName(f"n{at}"), ip, is_ready=True) for at, ip in enumerate(ips)]


def test_configuration_and_names_are_made_from_what_the_plugin_left(
    files: ImexFiles, tmp_path: Path
) -> None:
    files.prepare()
    assert (tmp_path / "imexd.cfg").read_text() == "IP=10.4.1.7\n"
    assert (tmp_path / "imexd.cfg").stat().st_mode & 0o777 == 0o644
    names = (tmp_path / "nodes.cfg").read_text()
    assert names == "compute-domain-daemon-0000\ncompute-domain-daemon-0001\n"


def test_a_file_that_says_it_already_is_not_written(files: ImexFiles, tmp_path: Path) -> None:
    files.prepare()
    before = (tmp_path / "imexd.cfg").stat()
    files.prepare()
    assert (tmp_path / "imexd.cfg").stat() == before


def test_without_the_template_the_reason_names_it(files: ImexFiles, tmp_path: Path) -> None:
    (tmp_path / "imexd.cfg.tmpl").unlink()
    with pytest.raises(DriverError, match=r"imexd\.cfg\.tmpl: No such file") as refused:
        files.prepare()
    assert refused.value.reason is Reason.DAEMON_NOT_READY
    assert "plugin of this node" in refused.value.remedy


def test_peers_are_named_in_place_and_every_other_byte_stays(
    files: ImexFiles, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    before = hosts.stat().st_ino
    assert files.name_peers(peers("10.4.1.7", "10.4.2.9"))
    assert not files.name_peers(peers("10.4.1.7", "10.4.2.9"))
    long = hosts.read_bytes()
    assert long.startswith(KUBELETS)
    assert b"10.4.2.9\tcompute-domain-daemon-0001\n" in long
    assert files.name_peers(peers("10.4.1.7"))
    assert b"10.4.2.9" not in hosts.read_bytes()
    assert hosts.read_bytes().endswith(b"# End of Compute Domain Daemon mappings\n")
    assert hosts.stat().st_ino == before


def test_a_hosts_file_that_cannot_be_written_is_a_reason(files: ImexFiles, tmp_path: Path) -> None:
    (tmp_path / "hosts").unlink()
    with pytest.raises(DriverError, match="hosts: No such file"):
        files.name_peers(peers("10.4.1.7"))


def test_addresses_are_a_new_list_only_when_they_differ(files: ImexFiles, tmp_path: Path) -> None:
    assert files.list_addresses(["10.4.1.7", "10.4.2.9"])
    assert not files.list_addresses(["10.4.1.7", "10.4.2.9"])
    assert files.list_addresses(["10.4.2.9", "10.4.1.7"])
    assert (tmp_path / "nodes.cfg").read_text() == "10.4.2.9\n10.4.1.7\n"
