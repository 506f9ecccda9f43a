# SPDX-License-Identifier: Apache-2.0
"""Writing, reading and removing spec files (docs/reference/cdi.md §6)."""

import math
import os
import stat
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_cdi import codec, files, version
from nvdra_cdi.errors import CDIError, CodecError, FileError, InvalidNameError, ValidationError
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, Spec

SPEC = Spec(
    "k8s.gpu.nvidia.com/device",
    (Device("gpu-0", ContainerEdits(device_nodes=(DeviceNode("/dev/nvidia0", "/host/nvidia0"),))),),
)
BROKEN = Spec("k8s.gpu.nvidia.com/device", ())


def test_a_written_spec_is_read_back_with_the_lowest_version_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    files.write(SPEC, path)
    assert files.read(path).version == "0.5.0"
    assert files.read(path).devices == SPEC.devices


@pytest.mark.parametrize(("name", "start"), [("a.yaml", b"---\n"), ("a.json", b"{")])
def test_the_extension_decides_the_format(tmp_path: Path, name: str, start: bytes) -> None:
    files.write(SPEC, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_file_that_is_there_is_left_alone_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    files.write(SPEC, path, overwrite=False)
    before = path.read_bytes()
    other = Spec(SPEC.kind, (Device("b", ContainerEdits(env=("A=b",))),))
    with pytest.raises(FileError, match="File exists"):
        files.write(other, path, overwrite=False)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_rewritten_file_keeps_its_mode_and_links_to_it_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "a", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    files.rewrite(link, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o640)
    assert link.is_symlink()
    with pytest.raises(FileError, match="cannot write"):
        files.rewrite(tmp_path / "missing", b"new")


def test_a_spec_is_readable_by_everybody_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        files.write(SPEC, tmp_path / "a.yaml")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.yaml").stat().st_mode) == 0o644


def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    files.write(SPEC, tmp_path / "run" / "cdi" / "a.yaml")
    assert [path.name for path in (tmp_path / "run" / "cdi").iterdir()] == ["a.yaml"]


def test_an_invalid_spec_leaves_the_former_one_and_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    files.write(SPEC, path)
    before = path.read_bytes()
    with pytest.raises(ValidationError, match=r"a\.yaml: devices"):
        files.write(BROKEN, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.mkdir()  # a rename cannot replace a directory by a file
    with pytest.raises(FileError, match=r"cannot write .*a\.yaml"):
        files.write(SPEC, path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a", "a.yml", "a.yaml.tmp"])
def test_a_name_that_no_runtime_reads_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError, match=r"\.yaml or \.json"):
        files.write(SPEC, tmp_path / name)


def test_a_reader_sees_a_complete_document_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    files.write(SPEC, path)
    big = Spec(
        SPEC.kind, tuple(Device(f"gpu-{i}", SPEC.devices[0].container_edits) for i in range(64))
    )
    done = threading.Event()

    def rewrite() -> None:
        for turn in range(50):
            files.write(big if turn % 2 else SPEC, path)
        done.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(len(codec.loads(path.read_bytes()).devices))
    writer.join()
    assert seen <= {1, 64}


def test_removing_is_done_even_when_the_file_is_gone_already(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    files.write(SPEC, path)
    files.remove(path)
    assert not path.exists()
    files.remove(path)
    files.remove(tmp_path / "missing" / "a.yaml")


def test_only_old_temporary_files_are_cleaned_up(tmp_path: Path) -> None:
    files.write(SPEC, tmp_path / "spec.yaml")
    for name, changed in (("spec.old.tmp", 1000), ("spec.new.tmp", 3000), ("other.tmp", 1000)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (changed, changed))
    os.utime(tmp_path / "spec.yaml", (1000, 1000))
    files.remove_temporary_files(tmp_path, before=2000)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["other.tmp", "spec.new.tmp", "spec.yaml"]


def test_a_writer_that_died_can_be_cleaned_up_after_without_touching_another_ones(
    tmp_path: Path,
) -> None:
    others = "spec.a.com-other_1.0a1b.tmp"
    for name in ("spec.a.com-gpu_1.0a1b.tmp", others, "spec.a.com-gpu_1.yaml"):
        (tmp_path / name).touch()
    files.remove_temporary_files(tmp_path, before=math.inf, name_prefix="a.com-gpu_")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["spec.a.com-gpu_1.yaml", others]
    )


def test_a_spec_may_have_the_longest_name_that_a_file_can_have(tmp_path: Path) -> None:
    path = tmp_path / f"{'a' * 250}.yaml"
    files.write(SPEC, path)
    assert files.read(path).devices == SPEC.devices


def test_cleaning_up_a_directory_that_is_not_there_is_fine(tmp_path: Path) -> None:
    files.remove_temporary_files(tmp_path / "missing", before=0)


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"kind: [", CodecError), (b"kind: a/b", ValidationError), (None, FileError)],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, error: type[CDIError]
) -> None:
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=r"a\.yaml"):
        files.read(path)


def test_another_vendors_spec_is_read_although_we_would_not_write_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(
        b"{cdiVersion: 0.3.0, kind: a/b, devices: [{name: x, containerEdits:"
        b" {deviceNodes: [{path: relative}]}}]}"
    )
    assert files.read(tmp_path / "a.yaml").devices[0].name == "x"


def test_spec_files_are_named_after_vendor_class_and_object() -> None:
    assert files.spec_name("nvidia.com", "gpu") == "nvidia.com-gpu.yaml"
    assert files.transient_name("v.com", "claim", "a/b") == "v.com-claim_a_b.yaml"


@pytest.mark.parametrize(
    ("vendor", "class_"), [("", "vendor.comdevice"), ("v.com", ""), ("/", "c")]
)
def test_a_spec_without_a_valid_vendor_and_class_has_no_name(vendor: str, class_: str) -> None:
    with pytest.raises(InvalidNameError):
        files.transient_name(vendor, class_, "id0")
    with pytest.raises(InvalidNameError):
        files.spec_name(vendor, class_)


@pytest.mark.parametrize("id_", ["", ".", "..", "a\0b", "x" * 250, "\ud800" * 100])
def test_an_id_that_cannot_be_in_a_file_name_is_refused(id_: str) -> None:
    with pytest.raises(FileError):
        files.transient_name("v.com", "claim", id_)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_path_that_no_file_can_have_is_a_file_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.yaml"
    for act in (
        lambda: files.write(SPEC, path),
        lambda: files.write(SPEC, path / "a.yaml"),
        lambda: files.read(path),
        lambda: files.remove(path),
        lambda: files.rewrite(path, b""),
    ):
        with pytest.raises(FileError, match="cannot "):
            act()


def test_a_document_that_is_too_large_to_read_is_not_written(tmp_path: Path) -> None:
    edits = ContainerEdits(env=tuple(f"A{index}={'x' * 9000}" for index in range(500)))
    with pytest.raises(ValidationError, match="exceeds 4194304 bytes"):
        files.write(Spec("v.com/claim", (Device("a", edits),)), tmp_path / "a.yaml")
    assert list(tmp_path.iterdir()) == []


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
ANY_NUMBER = st.integers() | st.integers(0, 4000)


def maybe(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.none() | numbers


def absolute() -> st.SearchStrategy[str]:
    return ANY_TEXT.map("/a{}".format)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    def some(values: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(values, max_size=2)))

    nodes = st.builds(
        DeviceNode,
        absolute(),
        absolute(),
        st.sampled_from(["", "c"]),
        ANY_NUMBER,
        ANY_NUMBER,
        maybe(ANY_NUMBER),
        st.sampled_from(["", "rw", "none"]),
        maybe(ANY_NUMBER),
        maybe(ANY_NUMBER),
    )
    hooks = st.builds(
        Hook,
        st.just("prestart"),
        absolute(),
        st.tuples(ANY_TEXT),
        st.tuples(ANY_TEXT.map("A={}".format)),
        maybe(ANY_NUMBER),
    )
    mounts = st.builds(Mount, absolute(), absolute(), st.tuples(ANY_TEXT), ANY_TEXT)
    edits = ContainerEdits(
        env=some(ANY_TEXT.map("A={}".format)),
        device_nodes=some(nodes),
        hooks=some(hooks),
        mounts=some(mounts),
        intel_rdt=draw(st.none() | st.builds(IntelRdt, ANY_TEXT, ANY_TEXT, ANY_TEXT)),
        additional_gids=some(ANY_NUMBER),
    )
    notes = draw(st.dictionaries(st.just("a") | ANY_TEXT, ANY_TEXT, max_size=2))
    return Spec("vendor.com/class", (Device("a", edits, notes),), annotations=notes)


@given(specs(), st.sampled_from(["a.yaml", "a.json"]))
def test_whatever_is_written_is_read_back(spec: Spec, name: str) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, name)
        try:
            files.write(spec, path)
        except ValidationError:
            assert not path.exists()
        else:
            assert files.read(path) == version.with_minimum(spec)
