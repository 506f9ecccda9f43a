"""The directories that plugin and daemons share, and what a daemon may have put there."""

import os
import re
from pathlib import Path

import pytest
from nvdra_api.types import names
from nvdra_api.types.errors import Reason, RetryableError
from nvdra_api.types.ids import DomainUID
from nvdra_cd_plugin.domain_files import TEMPLATE, DomainFiles

UID = DomainUID("11111111-2222-3333-4444-555555555555")
OTHER = DomainUID("99999999-2222-3333-4444-555555555555")


def test_it_has_the_template_with_the_places_that_daemons_fill_in(tmp_path: Path) -> None:
    files = DomainFiles(tmp_path)
    files.make(UID)
    text = (files.path(UID) / TEMPLATE).read_text()
    assert "IMEX_NODE_CONFIG_FILE={{ .IMEXDaemonNodesConfigPath }}\n" in text
    assert "IMEX_CMD_BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}\n" in text
    assert text.count("{{") == 2, "daemons refuse a template that asks for anything else"
    assert (files.path(UID) / TEMPLATE).stat().st_mode & 0o777 == 0o644
    assert files.path(UID).stat().st_mode & 0o777 == 0o755


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    files = DomainFiles(tmp_path)
    files.make(UID)
    (files.path(UID) / "nodes.cfg").write_text("a\n")
    before = (files.path(UID) / TEMPLATE).stat().st_ino
    files.make(UID)
    assert (files.path(UID) / TEMPLATE).stat().st_ino == before
    assert (files.path(UID) / "nodes.cfg").read_text() == "a\n"
    assert sorted(path.name for path in files.path(UID).iterdir()) == [TEMPLATE, "nodes.cfg"]


@pytest.mark.parametrize("kind", ["link", "fifo", "changed"])
def test_what_a_daemon_put_in_the_templates_place_leads_nowhere(tmp_path: Path, kind: str) -> None:
    files, secret = DomainFiles(tmp_path), tmp_path / "secret"
    secret.write_text("untouched")
    files.make(UID)
    template = files.path(UID) / TEMPLATE
    if kind == "changed":
        template.write_text("evil")
    else:
        template.unlink()
        os.mkfifo(template) if kind == "fifo" else template.symlink_to(secret)
    files.make(UID)
    assert secret.read_text() == "untouched"
    assert not template.is_symlink()
    assert "SERVER_PORT=50000" in template.read_text()


def test_a_link_in_the_directorys_place_is_not_followed(tmp_path: Path) -> None:
    files, elsewhere = DomainFiles(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    files.make(OTHER)
    files.path(UID).symlink_to(elsewhere)
    with pytest.raises(RetryableError) as refused:
        files.make(UID)
    assert refused.value.reason is Reason.STATE_UNAVAILABLE
    assert list(elsewhere.iterdir()) == []


def test_directories_that_nobody_needs_go_and_links_in_them_lead_nowhere(tmp_path: Path) -> None:
    files, outside = DomainFiles(tmp_path), tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    assert files.sweep(()) == []
    files.make(UID)
    files.make(OTHER)
    (files.path(OTHER) / "out").symlink_to(outside)
    (tmp_path / "domains" / "link").symlink_to(outside)
    (tmp_path / "domains" / "file").touch()
    assert sorted(files.sweep({UID})) == sorted([OTHER, "file", "link"])
    assert [path.name for path in (tmp_path / "domains").iterdir()] == [UID]
    assert (outside / "kept").exists()


def test_the_template_asks_a_daemon_for_the_two_values_that_daemons_have(tmp_path: Path) -> None:
    files = DomainFiles(tmp_path)
    files.make(UID)
    text = (files.path(UID) / TEMPLATE).read_text()
    assert sorted(re.findall(r"\{\{(.*?)\}\}", text)) == [
        " .IMEXCmdBindInterfaceIP ",
        " .IMEXDaemonNodesConfigPath ",
    ]
    # Those that are kept free for it in the daemon's pod.
    assert re.findall(r"^\w+_PORT=(\d+)$", text, re.MULTILINE) == [*map(str, names.IMEX_PORTS)]
