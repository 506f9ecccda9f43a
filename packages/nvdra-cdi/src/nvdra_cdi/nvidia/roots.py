"""The driver root: where its libraries are, which version it has, which dev root goes with it."""

from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.host import Host
from nvdra_cdi.nvidia import ldcache

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


def dev_root(host: Host, driver_root: str) -> str:
    """The tree with the device nodes that belong to a driver root: itself, or `/`.

    Itself when its `dev` has an NVIDIA character device: an empty `dev` is common in driver images
    and must not hide the host's nodes.
    """
    root = host.under(driver_root)
    found = (root.follow(path) for path in root.glob("/dev", "nvidia*"))
    has_node = any(node is not None and node[1].is_character_device for node in found)
    return driver_root if has_node else "/"


def device_tree(host: Host, driver_root: str, devices: str) -> str:
    """The tree whose `dev` is to be looked at, where a caller may say which directory that is.

    Args:
        host: Where to look.
        driver_root: The driver root.
        devices: What the caller says; `/dev`, which is the default, leaves it to `dev_root`: a
            driver container may carry its own device nodes.
    """
    return dev_root(host, driver_root) if devices == "/dev" else devices.removesuffix("/dev") or "/"


def find_libraries(root: Host, pattern: str, search: tuple[str, ...] = ()) -> list[str]:
    """The libraries that fit, links followed, each once; the linker's cache where there is none.

    Args:
        root: The driver root.
        pattern: Of the file name.
        search: Directories to look in instead of the usual ones.
    """
    return find_in(root, search or _LIBRARY_DIRECTORIES, pattern) or ldcache.locate(root, pattern)


def find_in(root: Host, directories: tuple[str, ...], pattern: str) -> list[str]:
    """The files in these directories that fit, links followed, each once."""
    found: dict[str, None] = {}
    for directory in directories:
        for path in root.glob(directory, pattern):
            file = root.follow(path)
            if file is not None and not file[1].is_directory:
                found[file[0]] = None
    return list(found)


def version(root: Host, expected: str | None, search: tuple[str, ...] = ()) -> str:
    """The version of the driver below `root`.

    Args:
        root: The driver root.
        expected: What NVML says, None where NVML cannot be asked.
        search: Directories to look in instead of the usual ones.

    Raises:
        DiscoveryError: No driver library is there, or it is of another version than NVML's.
    """
    for prefix in ("libcuda.so.", "libnvidia-ml.so."):
        for path in find_libraries(root, f"{prefix}{expected or '*.*'}", search):
            found = path.rpartition("/")[2].removeprefix(prefix)
            if not expected or found == expected:
                return found
            raise DiscoveryError(f"NVML says driver {expected}, but below {root} it is {found}")
    wanted = f"{expected} " if expected else ""
    raise DiscoveryError(f"no libcuda.so or libnvidia-ml.so of a driver {wanted}below {root}")


def library_directories(root: Host, version: str, search: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The directories that hold libraries of this version, in the order found."""
    found = find_libraries(root, f"lib*.so.{version}", search)
    return tuple(dict.fromkeys(path.rpartition("/")[0] or "/" for path in found))
