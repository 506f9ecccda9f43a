# SPDX-License-Identifier: Apache-2.0
"""Read the dynamic linker's cache, `/etc/ld.so.cache` (docs/reference/cdi.md §13.7).

The cache is used only for libraries that are in none of the default directories. A missing or
damaged cache is treated as empty: driver containers often have none.
"""

import fnmatch
import logging
import struct

from nvdra_cdi.rooted_files import RootedFiles

_PATH = "/etc/ld.so.cache"
_OLD_MAGIC = b"ld.so-1.7.0"
_OLD_HEADER = struct.Struct("<12xI")
_OLD_ENTRY_SIZE = 12
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20xII4xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_IS_ELF = 1
_ARCHITECTURES = frozenset((0x03, 0x05, 0x0A))  # x86-64, powerpc64le, aarch64; others are 32-bit
_MAX_LINKS = 40

_log = logging.getLogger(__name__)


def locate(root: RootedFiles, pattern: str) -> list[str]:
    """The resolved libraries that match the pattern by their own name or that of a link to them."""
    data = root.read(_PATH)
    if data is None:
        _log.debug("no %s in %s", _PATH, root)
        return []
    found: dict[str, None] = {}
    for path in libraries(data):
        resolved = root.resolve(path)
        if resolved is not None and any(
            fnmatch.fnmatchcase(n, pattern) for n in _names(root, path)
        ):
            found[resolved] = None
    return list(found)


def libraries(data: bytes) -> list[str]:
    """The paths of all 64-bit libraries in a cache file, in its order. Empty if it is damaged."""
    try:
        return _libraries(data)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        _log.warning("%s is damaged and ignored: %s", _PATH, error)
        return []


def _libraries(data: bytes) -> list[str]:
    start = 0
    if data.startswith(_OLD_MAGIC):
        (count,) = _OLD_HEADER.unpack_from(data)
        start = -(-(_OLD_HEADER.size + count * _OLD_ENTRY_SIZE) // 8) * 8
    if data[start : start + len(_MAGIC)] != _MAGIC:
        raise ValueError("unknown format")
    count, _, _ = _HEADER.unpack_from(data, start)
    if count > len(data) // _ENTRY.size:
        raise ValueError(f"{count} entries do not fit")
    paths: list[str] = []
    for index in range(count):
        flags, _, value, _, _ = _ENTRY.unpack_from(data, start + _HEADER.size + index * _ENTRY.size)
        if flags & _IS_ELF and (flags >> 8) & 0xFF in _ARCHITECTURES:
            paths.append(_text(data, start + value))
    return paths


def _text(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset)
    if offset > len(data) or end < 0:
        raise ValueError(f"no string at {offset}")
    return data[offset:end].decode()


def _names(root: RootedFiles, path: str) -> list[str]:
    names = [path.rpartition("/")[2]]
    while len(names) <= _MAX_LINKS and (target := root.readlink(path)) is not None:
        path = target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}"
        names.append(path.rpartition("/")[2])
    return names
