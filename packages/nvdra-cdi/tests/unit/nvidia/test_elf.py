# SPDX-License-Identifier: Apache-2.0
"""The dynamic section of shared libraries, real and damaged."""

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_cdi.nvidia import elf


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("order", ["<", ">"])
def test_the_soname_is_read_in_every_class_and_byte_order(
    library: Callable[..., bytes], bits: int, order: str
) -> None:
    assert elf.soname(io.BytesIO(library("libcuda.so.1", bits, order))) == "libcuda.so.1"


def test_a_library_that_states_no_soname_has_an_empty_one(library: Callable[..., bytes]) -> None:
    assert elf.soname(io.BytesIO(library(""))) == ""


def test_the_interpreters_own_c_library_is_called_libc() -> None:
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    path = next(path for path in paths if Path(path).name.startswith("libc.so"))
    with Path(path).open("rb") as file:
        assert elf.soname(file).startswith("libc.so")


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n" * 10, b"\x7fELF\3\1" + bytes(99)])
def test_what_is_no_elf_file_is_refused(data: bytes) -> None:
    with pytest.raises(elf.ElfError):
        elf.soname(io.BytesIO(data))


@given(st.data())
def test_a_damaged_library_is_refused_or_read_but_never_worse(
    library: Callable[..., bytes], data: st.DataObject
) -> None:
    good = bytearray(library("libcuda.so.1"))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))])
    with suppress(elf.ElfError):
        assert isinstance(elf.soname(io.BytesIO(cut)), str)
