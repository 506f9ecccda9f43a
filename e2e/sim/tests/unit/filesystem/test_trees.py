# SPDX-License-Identifier: Apache-2.0
import stat
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_sim.filesystem import trees
from nvdra_sim.filesystem.trees import (
    Copy,
    Directory,
    Entry,
    File,
    ForeignFileError,
    Link,
    Socket,
    Tree,
    text,
)

TREE: Tree = {
    "a/b/facts": text("one"),
    "a/empty": Directory(0o555),
    "a/link": Link("b/facts"),
    "run/socket": Socket(),
    "tool": File(b"\x7fELF", 0o755),
}


def contents(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): oct(path.lstat().st_mode) for path in root.rglob("*")}


def made(tree: Tree, root: Path) -> list[Path]:
    owned = trees.plan(tree, root)
    trees.write(tree, root)
    return owned


def test_a_tree_becomes_files_links_and_sockets(tmp_path: Path) -> None:
    made(TREE, tmp_path)
    assert (tmp_path / "a/link").read_text() == "one\n"
    assert stat.S_ISSOCK((tmp_path / "run/socket").stat().st_mode)
    assert stat.S_IMODE((tmp_path / "tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "a/empty").stat().st_mode) == 0o555


def test_what_was_planned_is_all_that_is_there_and_removing_it_leaves_nothing(
    tmp_path: Path,
) -> None:
    root = tmp_path / "deep" / "root"
    owned = made(TREE, root)
    assert set(owned) == {root.parent, root, *root.rglob("*")}
    trees.remove(owned)
    assert list(tmp_path.iterdir()) == []


def test_writing_again_touches_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("library")
    tree = {**TREE, "lib.so": Copy(source)}
    root = tmp_path / "root"
    owned = made(tree, root)
    before = {path: path.lstat().st_ino for path in root.rglob("*")}
    assert trees.plan(tree, root, owned) == owned
    trees.write(tree, root)
    assert {path: path.lstat().st_ino for path in root.rglob("*")} == before


def test_a_changed_file_is_replaced_so_that_whoever_has_it_open_keeps_the_old_one(
    tmp_path: Path,
) -> None:
    owned = made({"fact": text("one")}, tmp_path)
    with (tmp_path / "fact").open() as old:
        changed = {"fact": text("two")}
        assert trees.plan(changed, tmp_path, owned) == owned
        trees.write(changed, tmp_path)
        assert old.read() == "one\n"
    assert (tmp_path / "fact").read_text() == "two\n"


def test_a_file_where_a_directory_is_needed_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("precious")
    with pytest.raises(ForeignFileError, match="theirs"):
        trees.plan({"theirs/mine": text("x")}, tmp_path)


@pytest.mark.parametrize("entry", [text("mine"), Link("elsewhere"), Directory(), Socket()])
def test_a_file_of_someone_else_is_never_replaced(tmp_path: Path, entry: Entry) -> None:
    (tmp_path / "theirs").write_text("precious")
    with pytest.raises(ForeignFileError, match="theirs"):
        trees.plan({"before": text("x"), "theirs": entry}, tmp_path)
    assert contents(tmp_path).keys() == {"theirs"}


def test_a_file_that_is_already_right_is_used_and_not_owned(tmp_path: Path) -> None:
    (tmp_path / "fact").write_text("one\n")
    (tmp_path / "fact").chmod(0o644)
    owned = made({"fact": text("one"), "more": text("x")}, tmp_path)
    trees.remove(owned)
    assert contents(tmp_path).keys() == {"fact"}


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
ENTRIES: st.SearchStrategy[Entry] = st.sampled_from(
    [text("one"), text("two"), Link("a"), Directory(), Socket()]
)


def consistent(tree: Tree) -> bool:
    """Only directories have something below them."""
    return not any(
        below.startswith(f"{path}/") and not isinstance(entry, Directory)
        for path, entry in tree.items()
        for below in tree
    )


@given(st.lists(st.dictionaries(NAMES, ENTRIES, max_size=4).filter(consistent), max_size=5))
def test_whatever_follows_whatever_the_last_tree_is_there_and_then_nothing(
    sequence: list[Tree],
) -> None:
    with TemporaryDirectory() as directory:
        root = Path(directory)
        owned: list[Path] = []
        (root / "theirs").write_text("precious")
        for tree in sequence:
            ours = trees.plan(tree, root, owned)
            trees.remove([path for path in owned if path not in ours])
            trees.write(tree, root, owned)
            owned = ours
            implied = {str(above) for path in tree for above in PurePosixPath(path).parents}
            there = {str(path.relative_to(root)) for path in root.rglob("*")}
            assert there == {"theirs", *tree, *implied} - {"."}
        trees.remove(owned)
        assert [path.name for path in root.rglob("*")] == ["theirs"]


def test_a_directory_that_others_use_stays(tmp_path: Path) -> None:
    owned = made(TREE, tmp_path)
    (tmp_path / "a/theirs").write_text("precious")
    trees.remove(owned)
    assert contents(tmp_path).keys() == {"a", "a/theirs"}
