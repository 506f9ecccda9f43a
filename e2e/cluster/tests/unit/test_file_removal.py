# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from nvdra_lab import file_removal


def test_a_folder_goes_with_all_below_and_what_its_links_name_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    for folder in ("a/b/c", "a/empty", "d"):
        (tree / folder).mkdir(parents=True)
    for number in range(100):
        (tree / "a/b" / f"{number}").touch()
    (tree / "a/folder").symlink_to(outside)
    (tree / "d/nowhere").symlink_to("missing")
    (tree / "d/file").symlink_to(outside / "kept")
    file_removal.remove_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").exists()
