# SPDX-License-Identifier: Apache-2.0
"""The rooted view of files: links are followed as after a chroot (docs/reference/cdi.md §13.4)."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_cdi.rooted_files import RootedFiles


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("outside")
    inside = tmp_path / "root"
    (inside / "usr" / "lib").mkdir(parents=True)
    (inside / "usr" / "lib" / "a.so.1").write_text("inside")
    return inside


def test_an_absolute_link_means_the_file_below_the_same_root(root: Path) -> None:
    (root / "a.so").symlink_to("/usr/lib/a.so.1")
    assert RootedFiles(str(root)).resolve("/a.so") == "/usr/lib/a.so.1"
    assert RootedFiles(str(root)).read("/a.so") == b"inside"


def test_links_on_the_way_are_followed_too(root: Path) -> None:
    (root / "lib").symlink_to("usr/lib")
    (root / "usr" / "lib64").symlink_to("/lib")
    assert RootedFiles(str(root)).resolve("/usr/lib64/a.so.1") == "/usr/lib/a.so.1"


@pytest.mark.parametrize("target", ["../secret", "../../secret", "/../secret", "/missing", "loop"])
def test_a_link_that_escapes_dangles_or_loops_leads_nowhere(root: Path, target: str) -> None:
    (root / "loop").symlink_to("loop")
    (root / "link").symlink_to(target)
    host = RootedFiles(str(root))
    assert host.resolve("/link") is None
    assert host.follow("/link") is None
    assert host.read("/link") is None
    assert host.readlink("/link") == target


def test_a_link_that_leaves_the_root_is_broken_even_if_the_root_has_such_a_path(root: Path) -> None:
    (root / "link").symlink_to("../usr/lib/a.so.1")
    assert RootedFiles(str(root)).resolve("/link") is None
    assert RootedFiles(str(root)).read("/link") is None


def test_in_the_real_root_a_link_may_climb_as_high_as_it_likes(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(f"{'../' * 40}{str(tmp_path)[1:]}/file")
    assert RootedFiles().resolve(f"{tmp_path}/link") == os.path.realpath(tmp_path / "file")


def test_a_view_below_a_directory_starts_where_its_link_leads(root: Path) -> None:
    (root / "driver").symlink_to("/usr")
    assert RootedFiles(str(root)).subtree("/driver").resolve("/lib/a.so.1") == "/lib/a.so.1"


def test_a_view_below_a_directory_of_the_machine_follows_its_link_each_time(root: Path) -> None:
    (root / "driver").symlink_to("usr")
    view = RootedFiles().subtree(f"{root}/driver")
    assert view.resolve("/lib/a.so.1") == "/lib/a.so.1"
    (root / "driver").unlink()
    assert not view.lexists("/lib/a.so.1")


def test_a_link_that_leads_nowhere_is_there_all_the_same(root: Path) -> None:
    (root / "link").symlink_to("missing")
    host = RootedFiles(str(root))
    assert host.lexists("/link")
    assert not host.lexists("/missing")


def test_a_file_is_no_directory_on_the_way(root: Path) -> None:
    host = RootedFiles(str(root))
    assert host.resolve("/usr/lib/a.so.1/b") is None
    assert host.listdir("/usr/lib/a.so.1") == []
    assert host.listdir("/missing") == []


def test_names_that_fit_come_sorted_and_unresolved(root: Path) -> None:
    for name in ("b.so.1", "c.so.2", "d.so.1"):
        (root / "usr" / "lib" / name).touch()
    (root / "lib").symlink_to("usr/lib")
    assert RootedFiles(str(root)).glob("/lib/", "*.so.1") == [
        "/lib/a.so.1",
        "/lib/b.so.1",
        "/lib/d.so.1",
    ]
    assert RootedFiles(str(root)).glob("/", "lib*") == ["/lib"]


_targets = st.lists(st.sampled_from(["..", ".", "a", "b", "", "c"]), max_size=6).map("/".join)


@given(st.dictionaries(st.sampled_from(["a", "b", "d/a", "d/b"]), _targets), _targets)
def test_whatever_the_links_the_result_is_a_plain_path_inside(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], path: str
) -> None:
    top = tmp_path_factory.mktemp("root")
    (top / "d").mkdir()
    (top / "c").touch()
    for name, target in links.items():
        if target:
            (top / name).symlink_to(target)
    resolved = RootedFiles(str(top)).resolve(f"/{path}")
    if resolved is not None:
        real = Path(f"{top}{resolved}")
        assert os.path.realpath(real) == str(real).rstrip("/")


@pytest.mark.parametrize("path", ["/a\0b", "/usr/\0/x", "/\ud800"])
def test_a_path_that_no_file_can_have_does_not_exist(root: Path, path: str) -> None:
    for host in (RootedFiles(str(root)), RootedFiles()):
        assert host.resolve(path) is None
        assert host.lstat(path) is None
        assert not host.lexists(path)
        assert host.listdir(path) == []
        assert host.read(path) is None
