# SPDX-License-Identifier: Apache-2.0
"""Libraries that are only in /etc/ld.so.cache (docs/reference/cdi.md §13.7)."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_cdi.nvidia import driver_root, ldcache
from nvdra_testing.hardware.driver_tree import DriverTree

X86_64, AARCH64, I386 = 0x0301, 0x0A01, 0x0801


def cache(entries: Sequence[tuple[int, str]], old: bool = False) -> bytes:
    """A cache file: (flags, path) entries, with or without the old format in front."""
    strings, table = b"", b""
    start = 48 + 24 * len(entries)
    for flags, path in entries:
        name = path.rpartition("/")[2].encode() + b"\0"
        key = start + len(strings)
        strings += name + path.encode() + b"\0"
        table += struct.pack("<iIIIQ", flags, key, key + len(name), 0, 0)
    head = b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xI12x", len(entries), len(strings), 2, 0)
    body = head + table + strings
    if not old:
        return body
    front = b"ld.so-1.7.0\0" + struct.pack("<I", 3) + bytes(36)
    return front.ljust(-(-len(front) // 8) * 8, b"\0") + body


@pytest.mark.parametrize("old", [False, True])
def test_the_64_bit_libraries_are_listed_in_the_order_of_the_cache(old: bool) -> None:
    entries = [(X86_64, "/b/libb.so.1"), (I386, "/i386/libb.so.1"), (AARCH64, "/a/liba.so.1")]
    assert ldcache.libraries(cache(entries, old)) == ["/b/libb.so.1", "/a/liba.so.1"]


def test_an_entry_that_is_no_elf_library_is_left_out() -> None:
    assert ldcache.libraries(cache([(0x0300, "/b/libb.so.1")])) == []


@pytest.mark.parametrize(
    "data",
    [b"", b"ld.so-1.7.0", b"garbage" * 20, b"ld.so-1.7.0\0\xff\xff\xff\xff", cache([])[:30]],
)
def test_a_damaged_cache_is_an_empty_one(data: bytes) -> None:
    assert ldcache.libraries(data) == []


@given(st.data())
def test_whatever_is_in_the_file_reading_it_ends(data: st.DataObject) -> None:
    good = bytearray(cache([(X86_64, "/b/libb.so.1"), (X86_64, "/c/libc.so.1")], old=True))
    for _ in range(data.draw(st.integers(1, 6))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    found = ldcache.libraries(bytes(good[: data.draw(st.integers(0, len(good)))]))
    assert all(isinstance(path, str) for path in found)


def test_a_pattern_fits_any_name_on_the_way_to_the_file(tree: DriverTree) -> None:
    tree.file("/opt/driver/libcuda.so.580.95.05")
    tree.link("/opt/lib/libcuda.so.1", "/opt/driver/libcuda.so.580.95.05")
    tree.link("/opt/lib/libcuda.so", "libcuda.so.1")
    tree.file("/etc/ld.so.cache", cache([(X86_64, "/opt/lib/libcuda.so")]))
    for pattern in ("libcuda.so", "libcuda.so.1", "libcuda.so.*.*"):
        assert ldcache.locate(tree.host, pattern) == ["/opt/driver/libcuda.so.580.95.05"]
    assert ldcache.locate(tree.host, "libcuda.so.2") == []


def test_a_cached_path_that_leads_nowhere_is_left_out(tree: DriverTree) -> None:
    tree.link("/opt/lib/libloop.so.1", "libloop.so.1")
    tree.file(
        "/etc/ld.so.cache", cache([(X86_64, "/opt/lib/libloop.so.1"), (X86_64, "/gone.so.1")])
    )
    assert ldcache.locate(tree.host, "*") == []


def test_a_root_without_a_cache_has_no_libraries_in_it(tree: DriverTree) -> None:
    assert ldcache.locate(tree.host, "*") == []


def test_the_cache_is_asked_only_if_no_directories_are_given(tree: DriverTree) -> None:
    tree.file("/opt/lib/libcuda.so.1")
    tree.file("/etc/ld.so.cache", cache([(X86_64, "/opt/lib/libcuda.so.1")]))
    found = ["/opt/lib/libcuda.so.1"]
    assert driver_root.find_libraries(tree.host, "libcuda.so.*") == found
    assert driver_root.find_libraries(tree.host, "libcuda.so.*", ("/opt/lib",)) == found
    assert driver_root.find_libraries(tree.host, "libcuda.so.*", ("/opt",)) == []
