# SPDX-License-Identifier: Apache-2.0
"""The directories that plugin and daemons share, including what a daemon may put there."""

import os
import re
from pathlib import Path

import pytest
from nvdra_api import names
from nvdra_api.errors import Reason, RetryableError
from nvdra_api.ids import DomainUID, PodUID
from nvdra_cd_plugin.daemon.domain_directories import TEMPLATE_NAME, DomainDirectories
from nvdra_runtime.computedomain import ready_lock
from nvdra_runtime.node import open_file_lock

UID = DomainUID("11111111-2222-3333-4444-555555555555")
OTHER = DomainUID("99999999-2222-3333-4444-555555555555")
POD = PodUID("pod-1")


def test_the_directory_has_the_template_with_the_two_variables(tmp_path: Path) -> None:
    files = DomainDirectories(tmp_path)
    files.create(UID)
    text = (files.path(UID) / TEMPLATE_NAME).read_text()
    assert "IMEX_NODE_CONFIG_FILE={{ .IMEXDaemonNodesConfigPath }}\n" in text
    assert "IMEX_CMD_BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}\n" in text
    assert text.count("{{") == 2, "daemons refuse a template that asks for anything else"
    assert (files.path(UID) / TEMPLATE_NAME).stat().st_mode & 0o777 == 0o644
    assert files.path(UID).stat().st_mode & 0o777 == 0o755


def test_existing_files_are_not_changed(tmp_path: Path) -> None:
    files = DomainDirectories(tmp_path)
    files.create(UID)
    (files.path(UID) / "nodes.cfg").write_text("a\n")
    before = (files.path(UID) / TEMPLATE_NAME).stat().st_ino
    files.create(UID)
    assert (files.path(UID) / TEMPLATE_NAME).stat().st_ino == before
    assert (files.path(UID) / "nodes.cfg").read_text() == "a\n"
    assert sorted(path.name for path in files.path(UID).iterdir()) == [TEMPLATE_NAME, "nodes.cfg"]


@pytest.mark.parametrize("kind", ["link", "fifo", "changed"])
def test_a_link_in_the_templates_place_is_not_followed(tmp_path: Path, kind: str) -> None:
    files, secret = DomainDirectories(tmp_path), tmp_path / "secret"
    secret.write_text("untouched")
    files.create(UID)
    template = files.path(UID) / TEMPLATE_NAME
    if kind == "changed":
        template.write_text("evil")
    else:
        template.unlink()
        os.mkfifo(template) if kind == "fifo" else template.symlink_to(secret)
    files.create(UID)
    assert secret.read_text() == "untouched"
    assert not template.is_symlink()
    assert "SERVER_PORT=50000" in template.read_text()


def test_a_link_in_the_directorys_place_is_not_followed(tmp_path: Path) -> None:
    files, elsewhere = DomainDirectories(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    files.create(OTHER)
    files.path(UID).symlink_to(elsewhere)
    with pytest.raises(RetryableError) as refused:
        files.create(UID)
    assert refused.value.reason is Reason.STATE_UNAVAILABLE
    assert list(elsewhere.iterdir()) == []


def test_stale_directories_are_removed_without_following_links(tmp_path: Path) -> None:
    files, outside = DomainDirectories(tmp_path), tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    assert files.remove_stale(()) == []
    files.create(UID)
    files.create(OTHER)
    (files.path(OTHER) / "out").symlink_to(outside)
    (tmp_path / "domains" / "link").symlink_to(outside)
    (tmp_path / "domains" / "file").touch()
    assert sorted(files.remove_stale({UID})) == sorted([OTHER, "file", "link"])
    assert [path.name for path in (tmp_path / "domains").iterdir()] == [UID]
    assert (outside / "kept").exists()


def test_the_template_uses_the_two_values_that_daemons_know(tmp_path: Path) -> None:
    files = DomainDirectories(tmp_path)
    files.create(UID)
    text = (files.path(UID) / TEMPLATE_NAME).read_text()
    assert sorted(re.findall(r"\{\{(.*?)\}\}", text)) == [
        " .IMEXCmdBindInterfaceIP ",
        " .IMEXDaemonNodesConfigPath ",
    ]
    # Those that are kept free for it in the daemon's pod.
    assert re.findall(r"^\w+_PORT=(\d+)$", text, re.MULTILINE) == [*map(str, names.IMEX_PORTS)]


def test_the_lock_of_a_daemon_is_looked_for_in_its_domains_directory(tmp_path: Path) -> None:
    files = DomainDirectories(tmp_path)
    assert files.is_ready_lock_held(UID, [POD]) is None
    files.create(UID)
    assert files.is_ready_lock_held(UID, [POD]) is None
    descriptor = ready_lock.create(files.path(UID), POD)
    assert files.is_ready_lock_held(UID, [POD]) is False
    open_file_lock.acquire(descriptor)
    assert files.is_ready_lock_held(UID, [POD]) is True
    assert files.is_ready_lock_held(OTHER, [POD]) is None
    os.close(descriptor)
