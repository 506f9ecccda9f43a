# SPDX-License-Identifier: Apache-2.0
"""Read the soname of a shared library from its dynamic section.

This module reads only the necessary parts of the ELF format (System V ABI, chapter 5): program
headers, the dynamic table and one string. Libraries have up to 200 MB and are not read completely.
"""

import struct
from typing import BinaryIO

_MAGIC = b"\x7fELF"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14
_MAX_DYNAMIC = 1 << 16  # bytes; real tables have some hundred bytes
_MAX_NAME = 256  # bytes; file names have at most 255


class ElfError(Exception):
    """The file is not a readable ELF file."""


def soname(file: BinaryIO) -> str:
    """The soname of a library, or empty if it has none.

    Raises:
        ElfError: The file is not an ELF file, or is damaged.
    """
    try:
        return _soname(file)
    except (struct.error, UnicodeDecodeError, OverflowError, OSError) as error:
        raise ElfError(f"damaged: {error}") from error


def _soname(file: BinaryIO) -> str:
    ident = file.read(16)
    if ident[:4] != _MAGIC or ident[4:5] not in (b"\1", b"\2") or ident[5:6] not in (b"\1", b"\2"):
        raise ElfError("not an ELF file")
    is_64, order = ident[4] == 2, "<" if ident[5] == 1 else ">"
    segments = _segments(file, is_64, order)
    dynamic = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return ""
    _, offset, _, size = dynamic
    entries = _dynamic(_read_at(file, offset, min(size, _MAX_DYNAMIC)), is_64, order)
    if _DT_SONAME not in entries or _DT_STRTAB not in entries:
        return ""
    strings = _file_offset(entries[_DT_STRTAB], segments)
    name, _, _ = _read_at(file, strings + entries[_DT_SONAME], _MAX_NAME).partition(b"\0")
    return name.decode()


def _segments(file: BinaryIO, is_64: bool, order: str) -> list[tuple[int, int, int, int]]:
    """The type, file offset, address and file size of each segment."""
    header = struct.Struct(f"{order}{'16xQ14xHH' if is_64 else '12xI10xHH'}")
    start, entry_size, count = header.unpack(_read_at(file, 16, header.size))
    entry = struct.Struct(f"{order}{'I4xQQ8xQ16x' if is_64 else 'III4xI12x'}")
    return [
        entry.unpack(_read_at(file, start + index * entry_size, entry.size))
        for index in range(count)
    ]


def _dynamic(table: bytes, is_64: bool, order: str) -> dict[int, int]:
    entry = struct.Struct(f"{order}{'qQ' if is_64 else 'iI'}")
    values: dict[int, int] = {}
    for tag, value in entry.iter_unpack(table[: len(table) // entry.size * entry.size]):
        if tag == _DT_NULL:
            break
        values.setdefault(tag, value)
    return values


def _file_offset(address: int, segments: list[tuple[int, int, int, int]]) -> int:
    for kind, offset, start, size in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return offset + address - start
    raise ElfError(f"address {address:#x} is in no segment")


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
