# SPDX-License-Identifier: Apache-2.0
"""The hooks of `nvidia-cdi-hook` and their arguments (docs/reference/cdi.md §15).

Each function returns a tuple, which is empty if the hook is disabled or has nothing to do. This
module also determines the links that hooks create in a container.
"""

import posixpath
import re
from collections.abc import Iterable, Sequence

from nvdra_cdi.model import Hook
from nvdra_cdi.nvidia.facts import Driver, Library
from nvdra_cdi.nvidia.options import HookName, Options

_ENV = ("NVIDIA_CTK_DEBUG=false",)
_LIBRARY = re.compile(r"lib.+\.so(?:\..*)?")
_VERSIONED = re.compile(r".*\..*\..*")


def create_symlinks(options: Options, links: Iterable[str]) -> tuple[Hook, ...]:
    """Create links. Each is `<target>::<link>`; the target is not resolved."""
    return _hook_with_repeated_flag(options, HookName.CREATE_SYMLINKS, "--link", links)


def chmod(options: Options, folders: Iterable[str]) -> tuple[Hook, ...]:
    """Make the folders of device nodes accessible, a workaround for old versions of crun."""
    return _hook_with_repeated_flag(options, HookName.CHMOD, "--path", folders, "--mode", "755")


def update_ldcache(options: Options, folders: Iterable[str]) -> tuple[Hook, ...]:
    """Add the libraries in these folders to the cache of the container's dynamic linker."""
    ldconfig = ("--ldconfig-path", options.ldconfig_path) if options.ldconfig_path else ()
    return _hook_with_repeated_flag(
        options, HookName.UPDATE_LDCACHE, "--folder", folders, *ldconfig
    )


def enable_cuda_compat(options: Options, version: str) -> tuple[Hook, ...]:
    """Prefer the image's CUDA compatibility libraries if they are newer than the driver."""
    return _hook(options, HookName.ENABLE_CUDA_COMPAT, f"--host-driver-version={version}")


def disable_device_node_modification(options: Options) -> tuple[Hook, ...]:
    """Keep the driver's libraries from creating device nodes in the container."""
    return _hook(options, HookName.DISABLE_DEVICE_NODE_MODIFICATION)


def update_application_profile(options: Options) -> tuple[Hook, ...]:
    """Restrict EGL and Vulkan to the GPUs of the container."""
    return _hook(options, HookName.UPDATE_APPLICATION_PROFILE)


def apply_cuda_memory_limits(options: Options, uuid: str) -> tuple[Hook, ...]:
    """Limit GPU memory by the container's cgroup. This hook runs on the host."""
    root = options.target_driver_root
    arguments = ("--driver-root", root, "--gpu-id", uuid)
    return _hook(options, HookName.APPLY_CUDA_MEMORY_LIMITS, *arguments)


def driver_links(libraries: Sequence[Library]) -> list[str]:
    """The links that programs use to open the driver's libraries, in mount order."""
    links = (link for library in libraries for link in _links_of(library))
    return list(dict.fromkeys(links))


def graphics_links(driver: Driver) -> list[str]:
    """The links that graphics loaders use."""
    links: list[str] = []
    for file in driver.graphics_libraries:
        directory, name = posixpath.split(file.path)
        if name == f"libnvidia-allocator.so.{driver.version}":
            links.append(f"../libnvidia-allocator.so.1::{directory}/gbm/nvidia-drm_gbm.so")
        elif name == f"libnvidia-vulkan-producer.so.{driver.version}":
            links.append(f"{name}::{directory}/libnvidia-vulkan-producer.so")
        elif name == f"libglxserver_nvidia.so.{driver.version}":
            links.append(f"{name}::{directory}/libglxserver_nvidia.so")
    return links


def library_folders(libraries: Sequence[Library]) -> list[str]:
    """The folders that the dynamic linker must search, in mount order, without duplicates."""
    folders = (posixpath.split(library.path) for library in libraries)
    return list(dict.fromkeys(folder for folder, name in folders if _is_library(name)))


def so_name(name: str) -> str:
    """The name that linkers use: `libcuda.so` for `libcuda.so.1`. Empty for other names."""
    while name and not name.endswith(".so"):
        name = name.rpartition(".")[0]
    return name


def _links_of(library: Library) -> list[str]:
    directory, name = posixpath.split(library.path)
    if not _VERSIONED.fullmatch(name):
        return []
    links: list[str] = []
    if re.fullmatch(r"libcuda\.so\..*\..*", name):
        links.append(f"libcuda.so.1::{directory}/libcuda.so")
    elif re.fullmatch(r"libGLX_nvidia\.so\..*\..*", name):
        links.append(f"{name}::{directory}/libGLX_indirect.so.0")
    elif re.fullmatch(r"libnvidia-opticalflow\.so\..*\..*", name):
        links.append(f"libnvidia-opticalflow.so.1::{directory}/libnvidia-opticalflow.so")
    if library.soname is None:
        return links
    if library.soname != name and library.soname in library.links:
        links.append(f"{name}::{directory}/{library.soname}")
    so = so_name(library.soname)
    if so != library.soname and so in library.links:
        links.append(f"{library.soname}::{directory}/{so}")
    return links


def _is_library(name: str) -> bool:
    """The toolkit's rule: something after `lib`, only dotted parts after the last `.so`."""
    _, so, rest = name.rpartition(".so")
    return bool(_LIBRARY.match(name)) and bool(so) and (not rest or rest.startswith("."))


def _hook_with_repeated_flag(
    options: Options, name: HookName, flag: str, values: Iterable[str], *first: str
) -> tuple[Hook, ...]:
    repeated = [part for value in values for part in (flag, value)]
    return _hook(options, name, *first, *repeated) if repeated else ()


def _hook(options: Options, name: HookName, *arguments: str) -> tuple[Hook, ...]:
    if not options.allows(name):
        return ()
    program = posixpath.basename(options.hook_path)
    command = (program, "hook") if program == "nvidia-ctk" else (program,)
    is_outside = name is HookName.APPLY_CUDA_MEMORY_LIMITS
    return (
        Hook(
            hook_name="createRuntime" if is_outside else "createContainer",
            path=options.hook_path,
            args=(*command, name.value, *arguments),
            env=_ENV,
        ),
    )
