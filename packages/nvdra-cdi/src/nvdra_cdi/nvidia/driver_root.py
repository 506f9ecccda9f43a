# SPDX-License-Identifier: Apache-2.0
"""Find the libraries and version of a driver root, and the dev root that belongs to it."""

from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.nvidia import ldcache
from nvdra_cdi.rooted_files import RootedFiles

_LIBRARY_DIRECTORIES = (
    "/",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
)
_ANY_DRIVER = "libcuda.so.*.*"
_PLAIN_DIRECTORIES = ("/usr/lib", "/lib")
"""Of systems without a directory per architecture; elsewhere they can have 32-bit libraries."""


def dev_root(host: RootedFiles, driver_root: str) -> str:
    """The root of the device nodes that belong to a driver root: the driver root itself, or `/`.

    It is the driver root if its `dev` contains an NVIDIA character device. Driver images often have
    an empty `dev`, which must not hide the nodes of the host.
    """
    root = host.subtree(driver_root)
    found = (root.follow(path) for path in root.glob("/dev", "nvidia*"))
    has_node = any(node is not None and node[1].is_character_device for node in found)
    return driver_root if has_node else "/"


def resolve_dev_root(host: RootedFiles, driver_root: str, devices: str) -> str:
    """The dev root for a configured device directory.

    Args:
        host: The files of the host.
        driver_root: The driver root.
        devices: The configured device directory. For the default `/dev`, `dev_root` decides,
            because a driver container can have its own device nodes.
    """
    return dev_root(host, driver_root) if devices == "/dev" else devices.removesuffix("/dev") or "/"


def search_paths(root: RootedFiles, given: tuple[str, ...]) -> tuple[str, ...]:
    """The directories to pass to the functions of this module as `search`.

    Args:
        root: The driver root.
        given: The configured directories; empty for the default.
    """
    if given or find_libraries(root, _ANY_DRIVER):
        return given
    return _PLAIN_DIRECTORIES if find_files(root, _PLAIN_DIRECTORIES, _ANY_DRIVER) else ()


def find_libraries(root: RootedFiles, pattern: str, search: tuple[str, ...] = ()) -> list[str]:
    """The libraries that match a pattern, links resolved, without duplicates.

    Args:
        root: The driver root.
        pattern: A shell pattern for the file name.
        search: The directories to search instead of the default ones and, if those contain none,
            the cache of the dynamic linker.
    """
    if search:
        return find_files(root, search, pattern)
    return find_files(root, _LIBRARY_DIRECTORIES, pattern) or ldcache.locate(root, pattern)


def find_files(root: RootedFiles, directories: tuple[str, ...], pattern: str) -> list[str]:
    """The files in these directories that match a pattern, links resolved, without duplicates."""
    found: dict[str, None] = {}
    for directory in directories:
        for path in root.glob(directory, pattern):
            file = root.follow(path)
            if file is not None and not file[1].is_directory:
                found[file[0]] = None
    return list(found)


def driver_version(root: RootedFiles, expected: str | None, search: tuple[str, ...] = ()) -> str:
    """The version of the driver below `root`.

    Args:
        root: The driver root.
        expected: The version that NVML reports, or None if NVML is not available.
        search: The directories to search instead of the default ones.

    Raises:
        DiscoveryError: There is no driver library, or its version differs from that of NVML.
    """
    for prefix in ("libcuda.so.", "libnvidia-ml.so."):
        for path in find_libraries(root, f"{prefix}{expected or '*.*'}", search):
            found = path.rpartition("/")[2].removeprefix(prefix)
            if not expected or found == expected:
                return found
            raise DiscoveryError(
                f"NVML reports driver {expected}, but the driver below {root} is {found}"
            )
    wanted = f"{expected} " if expected else ""
    raise DiscoveryError(f"no libcuda.so or libnvidia-ml.so of a driver {wanted}below {root}")


def library_directories(
    root: RootedFiles, version: str, search: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The directories with libraries of this version, in the order found."""
    found = find_libraries(root, f"lib*.so.{version}", search)
    return tuple(dict.fromkeys(path.rpartition("/")[0] or "/" for path in found))
