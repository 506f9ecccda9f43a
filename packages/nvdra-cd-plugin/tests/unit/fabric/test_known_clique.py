# SPDX-License-Identifier: Apache-2.0
"""What a process knew of the clique, read by the next one."""

from dataclasses import replace
from pathlib import Path

import pytest
from nvdra_api.ids import CliqueID
from nvdra_cd_plugin.fabric.known_clique import KnownClique
from nvdra_cd_plugin.fabric.nvml_query import FabricPolicy
from nvdra_runtime.node.host import Host

CLIQUE = CliqueID("6f1c7a52-0d3e-5b8a-9c41-27e5a0d1b672.2")
POLICY = FabricPolicy(is_strict=True, tolerates_unfinished=False, requires_dns_names=True)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    write_boot_id(tmp_path, "boot-1")
    return Host(proc=tmp_path, sys=tmp_path, dev=tmp_path, driver_root=tmp_path)


def write_boot_id(proc: Path, boot_id: str) -> None:
    path = proc / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{boot_id}\n")


@pytest.mark.parametrize("clique", [CLIQUE, CliqueID("")])
def test_the_next_process_of_the_boot_knows_the_clique(
    tmp_path: Path, host: Host, clique: CliqueID
) -> None:
    assert KnownClique(tmp_path, host, POLICY).read() is None
    KnownClique(tmp_path, host, POLICY).write(clique)
    assert KnownClique(tmp_path, host, POLICY).read() == clique


def test_the_clique_of_another_boot_is_not_known(tmp_path: Path, host: Host) -> None:
    KnownClique(tmp_path, host, POLICY).write(CLIQUE)
    write_boot_id(tmp_path, "boot-2")
    assert KnownClique(tmp_path, host, POLICY).read() is None


@pytest.mark.parametrize("field", ["is_strict", "tolerates_unfinished", "requires_dns_names"])
def test_a_clique_that_was_found_with_other_gates_is_not_known(
    tmp_path: Path, host: Host, field: str
) -> None:
    KnownClique(tmp_path, host, POLICY).write(CLIQUE)
    other = replace(POLICY, **{field: not getattr(POLICY, field)})
    assert KnownClique(tmp_path, host, other).read() is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"clique": 1}', b"\xff"])
def test_a_file_that_cannot_be_understood_is_not_used(
    tmp_path: Path, host: Host, content: bytes
) -> None:
    (tmp_path / "clique.json").write_bytes(content)
    assert KnownClique(tmp_path, host, POLICY).read() is None


def test_nothing_is_known_and_nothing_fails_where_no_file_can_be_written(
    tmp_path: Path, host: Host
) -> None:
    known = KnownClique(tmp_path / "away", host, POLICY)
    known.write(CLIQUE)
    assert known.read() is None
