# SPDX-License-Identifier: Apache-2.0
"""Spec directories as devices by name: priorities, conflicts, broken files, changes.

Source: docs/reference/cdi.md §7.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from nvdra_cdi import codec, files
from nvdra_cdi.cache import Cache
from nvdra_cdi.errors import (
    CodecError,
    ConflictError,
    FileError,
    UnresolvedDevicesError,
    ValidationError,
)
from nvdra_cdi.index import LoadedSpec, build
from nvdra_cdi.model import ContainerEdits, Device, Spec


def spec(*names: str, kind: str = "vendor.com/class", mark: str = "1") -> Spec:
    devices = tuple(Device(name, ContainerEdits(env=(f"{name}={mark}",))) for name in names)
    return Spec(kind, devices, ContainerEdits(env=(f"SPEC={mark}",)), version="0.5.0")


@pytest.fixture
def low(tmp_path: Path) -> Path:
    (tmp_path / "low").mkdir()
    return tmp_path / "low"


@pytest.fixture
def high(tmp_path: Path) -> Path:
    (tmp_path / "high").mkdir()
    return tmp_path / "high"


@pytest.fixture
def cache(low: Path, high: Path) -> Cache:
    return Cache([low, high])


def mark(cache: Cache, name: str) -> str | None:
    found = cache.get_device(f"vendor.com/class={name}")
    return None if found is None else found.device.container_edits.env[0].partition("=")[2]


def test_the_default_directories_are_the_standards() -> None:
    assert Cache().get_spec_dirs() == Cache([]).get_spec_dirs() == ("/etc/cdi", "/var/run/cdi")


def test_the_directories_are_cleaned(tmp_path: Path) -> None:
    assert Cache([f"{tmp_path}//a/../b/"]).get_spec_dirs() == (f"{tmp_path}/b",)


def test_devices_vendors_and_classes_are_listed_sorted_and_once(
    cache: Cache, low: Path, high: Path
) -> None:
    files.write(spec("b", "a"), low / "x.yaml")
    files.write(spec("a", kind="other.com/class"), high / "y.json")
    files.write(spec("0", kind="other.com/gpu"), high / "z.yaml")
    assert cache.list_devices() == [
        "other.com/class=a",
        "other.com/gpu=0",
        "vendor.com/class=a",
        "vendor.com/class=b",
    ]
    assert cache.list_vendors() == ["other.com", "vendor.com"]
    assert cache.list_classes() == ["class", "gpu"]
    assert list(cache.get_devices()) == cache.list_devices()
    found = cache.get_devices()["other.com/gpu=0"]
    assert found == cache.get_device("other.com/gpu=0")
    specs = cache.get_vendor_specs("other.com")
    assert [(each.path, each.priority, each.class_) for each in specs] == [
        (f"{high}/y.json", 1, "class"),
        (f"{high}/z.yaml", 1, "gpu"),
    ]
    assert cache.get_vendor_specs("nobody.com") == ()
    assert cache.get_errors() == {}


def test_a_device_knows_its_name_and_its_file(cache: Cache, low: Path) -> None:
    files.write(spec("a"), low / "x.yaml")
    found = cache.get_device("vendor.com/class=a")
    assert found is not None
    assert found.qualified_name == "vendor.com/class=a"
    assert (found.spec.path, found.spec.vendor) == (f"{low}/x.yaml", "vendor.com")


def test_the_higher_directory_wins_without_an_error(cache: Cache, low: Path, high: Path) -> None:
    files.write(spec("a", "b", mark="low"), low / "x.yaml")
    files.write(spec("a", mark="high"), high / "x.yaml")
    assert (mark(cache, "a"), mark(cache, "b")) == ("high", "low")
    assert cache.get_errors() == {}


def test_two_definitions_in_one_directory_cancel_each_other_and_nothing_else(
    cache: Cache, low: Path
) -> None:
    files.write(spec("a", "b"), low / "x.yaml")
    files.write(spec("a", "c"), low / "y.yaml")
    assert cache.list_devices() == ["vendor.com/class=b", "vendor.com/class=c"]
    errors = cache.get_errors()
    assert errors.keys() == {f"{low}/x.yaml", f"{low}/y.yaml"}
    (error,) = errors[f"{low}/x.yaml"]
    assert isinstance(error, ConflictError)
    for fact in ("vendor.com/class=a", f"{low}/x.yaml", f"{low}/y.yaml"):
        assert fact in str(error)
    (loaded, _) = cache.get_vendor_specs("vendor.com")
    assert cache.get_spec_errors(loaded) == (error,)


def test_of_three_definitions_the_first_meets_two(cache: Cache, low: Path) -> None:
    for name in "xyz":
        files.write(spec("a"), low / f"{name}.yaml")
    errors = cache.get_errors()
    assert [len(errors[f"{low}/{name}.yaml"]) for name in "xyz"] == [2, 1, 1]


def test_a_conflict_below_leaves_a_definition_above_alone(
    cache: Cache, low: Path, high: Path
) -> None:
    files.write(spec("a"), low / "x.yaml")
    files.write(spec("a"), low / "y.yaml")
    files.write(spec("a", mark="high"), high / "z.yaml")
    assert mark(cache, "a") == "high"
    assert cache.get_errors().keys() == {f"{low}/x.yaml", f"{low}/y.yaml"}


def test_a_conflict_above_is_not_resolved_from_below(cache: Cache, low: Path, high: Path) -> None:
    files.write(spec("a"), low / "x.yaml")
    files.write(spec("a"), high / "x.yaml")
    files.write(spec("a"), high / "y.yaml")
    assert mark(cache, "a") is None


def test_the_index_does_not_depend_on_the_order_of_priorities() -> None:
    loaded = [LoadedSpec(spec("a", mark=str(n)), f"/{n}/x.yaml", n) for n in range(3)]
    for given in (loaded, loaded[::-1]):
        index = build(given)
        assert index.devices["vendor.com/class=a"].spec.priority == 2
        assert not index.conflicts


BROKEN = {
    "bytes.yaml": (b"\xff\xfe\x00", CodecError),
    "text.yaml": (b"nonsense: [", CodecError),
    "rules.json": (b'{"cdiVersion":"9.9.9"}', ValidationError),
    "empty.json": (b"", CodecError),
    "deep.yaml": (b"[" * 100_000, CodecError),
    "huge.yaml": (b"#" * (5 << 20), CodecError),
}


def test_broken_files_are_errors_under_their_paths_and_take_nothing_from_the_others(
    cache: Cache, low: Path
) -> None:
    files.write(spec("a"), low / "good.yaml")
    for name, (data, _) in BROKEN.items():
        (low / name).write_bytes(data)
    (low / "dangling.yaml").symlink_to("/nowhere")
    (low / "directory.yaml").symlink_to("/")
    os.mkfifo(low / "fifo.yaml")
    (low / "device.json").symlink_to("/dev/zero")
    assert cache.list_devices() == ["vendor.com/class=a"]
    errors = cache.get_errors()
    expected = {name: error for name, (_, error) in BROKEN.items()} | dict.fromkeys(
        ("dangling.yaml", "directory.yaml", "fifo.yaml", "device.json"), FileError
    )
    assert {Path(path).name: type(found[0]) for path, found in errors.items()} == expected
    assert all(path in str(found[0]) for path, found in errors.items())
    assert len(cache.refresh()) == len(expected)


def test_what_is_no_spec_by_its_name_is_ignored(cache: Cache, low: Path) -> None:
    for name in ("x.yml", "x.yaml.tmp", "x.YAML", "yaml", "spec.1.tmp"):
        (low / name).write_bytes(b"broken: [")
    (low / "d.yaml").mkdir()
    (low / "sub").mkdir()
    files.write(spec("a"), low / "sub" / "x.yaml")
    assert (cache.list_devices(), cache.get_errors()) == ([], {})


def test_a_link_to_a_file_is_followed_and_a_new_target_is_seen(
    cache: Cache, low: Path, tmp_path: Path
) -> None:
    files.write(spec("a", mark="one"), tmp_path / "one.yaml")
    files.write(spec("a", mark="two"), tmp_path / "two.yaml")
    (low / "x.yaml").symlink_to(tmp_path / "one.yaml")
    assert mark(cache, "a") == "one"
    (low / "x.yaml").unlink()
    (low / "x.yaml").symlink_to(tmp_path / "two.yaml")
    assert mark(cache, "a") == "two"


def test_a_file_that_comes_changes_and_goes_is_seen_at_the_next_query(
    cache: Cache, low: Path
) -> None:
    assert mark(cache, "a") is None
    files.write(spec("a"), low / "x.yaml")
    assert mark(cache, "a") == "1"
    files.write(spec("a", mark="2"), low / "x.yaml")
    assert mark(cache, "a") == "2"
    (low / "x.yaml").write_bytes(b"broken: [")
    assert mark(cache, "a") is None
    assert cache.get_errors().keys() == {f"{low}/x.yaml"}
    (low / "x.yaml").unlink()
    assert cache.get_errors() == {}


def test_a_directory_that_comes_later_is_found_and_its_absence_was_told(tmp_path: Path) -> None:
    later = tmp_path / "later"
    cache = Cache([later])
    assert "failed to monitor for changes" in str(cache.get_spec_dir_errors()[str(later)])
    assert not cache.has_spec_dir(str(later))
    assert cache.get_errors().keys() == {str(later)}
    files.write(spec("a"), later / "x.yaml")
    assert mark(cache, "a") == "1"
    assert cache.has_spec_dir(str(later))
    assert cache.get_spec_dir_errors() == {}
    (later / "x.yaml").unlink()
    later.rmdir()
    assert mark(cache, "a") is None
    assert cache.get_spec_dir_errors().keys() == {str(later)}


def test_a_directory_that_cannot_be_read_does_not_end_the_scan(tmp_path: Path, high: Path) -> None:
    (tmp_path / "file").touch()
    files.write(spec("a"), high / "x.yaml")
    for auto_refresh in (True, False):
        cache = Cache([tmp_path / "file", high], auto_refresh=auto_refresh)
        assert mark(cache, "a") == "1"
        assert cache.get_spec_dir_errors().keys() == {f"{tmp_path}/file"}
        assert cache.refresh() == ()  # directory errors are not part of it


def test_without_auto_refresh_only_an_explicit_one_looks_again(low: Path, tmp_path: Path) -> None:
    cache = Cache([low, tmp_path / "missing"], auto_refresh=False)
    files.write(spec("a"), low / "x.yaml")
    assert mark(cache, "a") is None
    assert cache.refresh() == ()
    assert mark(cache, "a") == "1"
    assert cache.get_spec_dir_errors() == {}  # nobody watches, so nobody misses it


def test_a_change_that_keeps_size_and_time_of_modification_is_seen(low: Path) -> None:
    path = low / "x.yaml"
    files.write(spec("a"), path)
    before = path.stat()
    cache = Cache([low])
    wait_for_another_tick(path)
    with path.open("r+b") as file:
        file.write(codec.dumps(spec("b")))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert cache.list_devices() == ["vendor.com/class=b"]


def wait_for_another_tick(path: Path) -> None:
    """Return when a change of a file gets another time than the last change of this one."""
    probe = path.with_name("probe")
    probe.touch()
    while probe.stat().st_ctime_ns == path.stat().st_ctime_ns:
        probe.touch()
    probe.unlink()


COUNT_OPENED_FILES = """
import sys, time
from nvdra_cdi.cache import Cache

def look(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".yaml"):
        opened.append(arguments[0])

opened = []
late = int(sys.argv[2])
cache = Cache([sys.argv[1]], now_ns=lambda: time.time_ns() + late)
sys.addaudithook(look)
for name in ("vendor.com/class=x", "x/y=z"):
    assert cache.get_device(name) is None
print(len(opened))
"""


@pytest.mark.parametrize(("age_ns", "opened"), [(10**9, 0), (-3600 * 10**9, 2 * 3)])
def test_an_unknown_name_costs_reading_only_files_whose_last_change_may_be_hidden(
    low: Path, age_ns: int, opened: int
) -> None:
    for name in "abc":
        files.write(spec(name), low / f"{name}.yaml")
    command = (sys.executable, "-c", COUNT_OPENED_FILES, str(low), str(age_ns))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == opened


def test_a_directory_that_cannot_exist_is_an_error_of_that_directory(low: Path) -> None:
    files.write(spec("a"), low / "x.yaml")
    cache = Cache(["/a\0b", low])
    assert cache.list_devices() == ["vendor.com/class=a"]
    assert cache.get_spec_dir_errors().keys() == {"/a\0b"}


def test_specs_are_written_to_and_removed_from_the_highest_directory(
    cache: Cache, low: Path, high: Path
) -> None:
    assert cache.write_spec(spec("a"), "x") == high / "x.yaml"
    assert cache.write_spec(spec("b"), "y.json") == high / "y.json"
    assert cache.write_spec(spec("c"), "z.yml") == high / "z.yml.yaml"
    assert cache.list_devices() == [f"vendor.com/class={name}" for name in "abc"]
    for name in ("x", "y.json", "z.yml", "gone"):
        cache.remove_spec(name)
    assert cache.list_devices() == []


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\0b", "\ud800"])
def test_a_name_that_leads_elsewhere_is_refused(cache: Cache, name: str) -> None:
    with pytest.raises(FileError):
        cache.write_spec(spec("a"), name)
    with pytest.raises(FileError):
        cache.remove_spec(name)


def test_a_specs_own_edits_come_once_before_its_first_device(cache: Cache, low: Path) -> None:
    files.write(spec("a", "b"), low / "x.yaml")
    files.write(spec("c", kind="other.com/class", mark="2"), low / "y.yaml")
    names = ["vendor.com/class=b", "other.com/class=c", "vendor.com/class=a", "vendor.com/class=b"]
    assert cache.resolve(names).env == ("SPEC=1", "b=1", "SPEC=2", "c=2", "a=1", "b=1")
    assert cache.resolve([]) == ContainerEdits()


def test_all_unknown_names_are_told_at_once_in_their_order(cache: Cache, low: Path) -> None:
    files.write(spec("a"), low / "x.yaml")
    with pytest.raises(UnresolvedDevicesError) as caught:
        cache.resolve(["z/z=z", "vendor.com/class=a", "nonsense"])
    assert caught.value.names == ("z/z=z", "nonsense")
    assert str(caught.value) == "unresolvable CDI devices z/z=z, nonsense"


def test_readers_in_several_threads_see_whole_states(low: Path) -> None:
    cache = Cache([low])
    files.write(spec("a", "b"), low / "x.yaml")
    done = threading.Event()
    seen: set[tuple[str, ...]] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(tuple(cache.list_devices()))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for turn in range(30):
        files.write(spec("a", "b") if turn % 2 else spec("c"), low / "x.yaml")
    done.set()
    for reader in readers:
        reader.join()
    one, other = ("vendor.com/class=a", "vendor.com/class=b"), ("vendor.com/class=c",)
    assert seen <= {(), one, other}


class Directories(RuleBasedStateMachine):
    """Files come, change, break and go; a cache that has seen it all says what a new one says."""

    names = st.sampled_from(["x.yaml", "y.yaml", "z.json"])

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory()
        self.directories = [Path(self.temporary.name, name) for name in ("low", "high")]
        self.cache = Cache(self.directories)

    @rule(directory=st.integers(0, 1), name=names, devices=st.sets(st.sampled_from("abc")))
    def write(self, directory: int, name: str, devices: set[str]) -> None:
        path = self.directories[directory] / name
        if devices:
            files.write(spec(*sorted(devices)), path)
        elif path.parent.exists():
            path.write_bytes(b"broken: [")

    @rule(directory=st.integers(0, 1), name=names)
    def remove(self, directory: int, name: str) -> None:
        files.remove(self.directories[directory] / name)

    @rule(directory=st.integers(0, 1))
    def remove_directory(self, directory: int) -> None:
        for path in self.directories[directory].glob("*"):
            path.unlink()
        if self.directories[directory].exists():
            self.directories[directory].rmdir()

    @invariant()
    def says_what_a_new_cache_says(self) -> None:
        fresh = Cache(self.directories)
        assert self.cache.list_devices() == fresh.list_devices()  # a miss would read anew: first
        assert str(self.cache.get_errors()) == str(fresh.get_errors())
        for qualified in fresh.list_devices():
            assert self.cache.get_device(qualified) == fresh.get_device(qualified)

    def teardown(self) -> None:
        self.temporary.cleanup()


TestDirectories = Directories.TestCase
TestDirectories.settings = settings(max_examples=30, stateful_step_count=12)
