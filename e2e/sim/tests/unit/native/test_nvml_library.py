# SPDX-License-Identifier: Apache-2.0
"""Native parts are compiled once, when first wanted, and found again by what they are made of."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import sizeof
from pathlib import Path
from shutil import rmtree

import pytest
from nvdra_sim.native import nvml_functions, nvml_library
from nvdra_sim.state_file import layout

SOURCES = {"one.c": '#include "one.h"\nint one(void) { return ONE; }\n', "one.h": "#define ONE 1\n"}
FLAGS = ("-shared", "-fPIC")
Compile = Callable[..., Path]


@pytest.fixture
def compile_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """Compiles into a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def run(sources: dict[str, str] = SOURCES, flags: tuple[str, ...] = FLAGS) -> Path:
        return nvml_library.compile_cached("libone.so", sources, flags)

    return run


def test_what_is_compiled_lies_in_the_cache_folder(compile_: Compile, tmp_path: Path) -> None:
    made = compile_()
    assert made.parent.parent == tmp_path / "nvdra/sim"
    assert list(nvml_library.exported_names(made)) == ["one"]


def test_the_same_sources_are_compiled_once(compile_: Compile) -> None:
    before = compile_().stat()
    after = compile_().stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_other_sources_or_flags_make_another_file(compile_: Compile) -> None:
    paths = [
        compile_(),
        compile_({**SOURCES, "one.h": "#define ONE 2\n"}),
        compile_(flags=(*FLAGS, "-O1")),
    ]
    assert len(set(paths)) == 3


def test_a_file_that_was_removed_is_made_again(compile_: Compile) -> None:
    rmtree(compile_().parent)
    assert compile_().is_file()


def test_concurrent_builds_agree_on_one_file(compile_: Compile, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: compile_(), range(4)))
    (path,) = paths
    assert list((tmp_path / "nvdra/sim").iterdir()) == [path.parent]


def test_a_source_with_a_mistake_is_reported_in_the_compilers_words(
    compile_: Compile, tmp_path: Path
) -> None:
    with pytest.raises(nvml_library.BuildError, match=r"one\.c:1:.*error"):
        compile_({"one.c": "int one(void) { return; }", "two.c": "mistake"}, (*FLAGS, "-Werror"))
    assert list((tmp_path / "nvdra/sim").iterdir()) == []


def test_a_missing_compiler_is_named(
    compile_: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(nvml_library.BuildError, match="apt-get install gcc"):
        compile_()


def test_the_layout_in_c_has_an_assertion_for_every_field() -> None:
    header = layout.c_header()
    fields = sum(len(structure._fields_) for structure in layout._STRUCTURES)
    assert header.count("_Static_assert(offsetof") == fields
    assert header.count("_Static_assert(sizeof") == len(layout._STRUCTURES)


def test_the_regions_of_the_state_file_do_not_overlap() -> None:
    end = 0
    for offset, kind in sorted(layout.REGIONS.values(), key=lambda region: region[0]):
        assert offset >= end
        end = offset + sizeof(kind)
    assert end <= layout.FILE_SIZE


def test_every_listed_function_has_a_counter() -> None:
    assert len(nvml_functions.functions()) <= layout.MAX_FUNCTIONS
