# SPDX-License-Identifier: Apache-2.0
"""Find the driver's files. Device nodes are found in `device_nodes`.

The lists of names are those of toolkit 1.20.1 (docs/reference/cdi.md §§13.6, 14, 16.1). Missing
optional files are left out silently. Missing files that a container requires raise
`DiscoveryError`.
"""

import logging

from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.nvidia import driver_root, elf, hooks
from nvdra_cdi.nvidia.facts import Driver, File, Library
from nvdra_cdi.nvidia.options import Feature, Options
from nvdra_cdi.rooted_files import RootedFiles

_PROGRAM_DIRECTORIES = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)
_GRAPHICS_PROGRAMS = ("nvidia-xconfig",)
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
_SOCKET_DIRECTORIES = ("/run", "/var/run")
_SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
_MPS_PIPE = "/tmp/nvidia-mps"  # noqa: S108 - the driver's fixed path, which is only read
_EXPLICIT_LIBRARIES = (
    "libEGL.so",
    "libGL.so",
    "libGLESv1_CM.so",
    "libGLESv2.so",
    "libGLX.so",
    "libGLdispatch.so",
    "libOpenCL.so",
    "libOpenGL.so",
    "libnvidia-api.so",
    "libnvidia-egl-xcb.so",
    "libnvidia-egl-xlib.so",
)
_FIRMWARE = ("gsp*.bin", "ucodes*.bin")
_FIRMWARE_PATH = "/module/firmware_class/parameters/path"
_EGL_PLATFORMS = (
    "libnvidia-egl-gbm.so.*.*",
    "libnvidia-egl-wayland.so.*.*",
    "libnvidia-egl-wayland2.so.*.*",
    "libnvidia-egl-xcb.so.*.*",
    "libnvidia-egl-xlib.so.*.*",
)
_XORG_BASES = ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
_XORG_MODULES = (
    "modules/drivers",
    "modules/extensions",
    "modules/updates/drivers",
    "modules/updates/extensions",
)
_CONFIG_DIRECTORIES = ("/etc", "/usr/local/share", "/usr/share")
_SHARED_CONFIGS = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
_OPENCL_CONFIGS = ("OpenCL/vendors/nvidia.icd",)
_VULKAN_CONFIGS = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)

_GDS_DIRECTORY, _GDS_CONFIG = "/run/udev", "/etc/cufile.json"

_log = logging.getLogger(__name__)


def discover(root: RootedFiles, sysfs: RootedFiles, options: Options) -> Driver:
    """Find the driver below `root`.

    Raises:
        DiscoveryError: There is no driver, or it does not have the expected version.
    """
    search = driver_root.search_paths(root, options.library_search_paths)
    version = driver_root.driver_version(root, options.driver_version, search)
    directories = driver_root.library_directories(root, version, search)
    libraries = _libraries(root, directories, version)
    if Feature.EXPLICIT_DRIVER_LIBRARIES in options.features:
        libraries = _with_explicit(root, libraries, search)
    if not libraries:
        raise DiscoveryError(f"no library of driver {version} below {root}")
    return Driver(
        version=version,
        directories=directories,
        libraries=libraries,
        graphics_libraries=(
            *_graphics_libraries(root, version, search),
            *_xorg_modules(root, directories, version),
        ),
        files=(*_programs(root, _PROGRAMS), *_firmware(root, sysfs, version)),
        graphics_files=(
            *_programs(root, _GRAPHICS_PROGRAMS),
            *_configs(root, options.config_search_paths or _CONFIG_DIRECTORIES),
        ),
        sockets=sockets(root),
        mps_pipe=mps_pipe(root),
    )


def sockets(root: RootedFiles) -> tuple[File, ...]:
    """The sockets of the driver's services that run now."""
    return tuple(_first_of_each(root, _SOCKET_DIRECTORIES, _SOCKETS))


def is_socket(path: str) -> bool:
    """Whether a path in a container is that of a service's socket."""
    return any(path == f"{folder}/{name}" for folder in _SOCKET_DIRECTORIES for name in _SOCKETS)


def _libraries(
    root: RootedFiles, directories: tuple[str, ...], version: str
) -> tuple[Library, ...]:
    with_vdpau = (*directories, *(f"{directory.rstrip('/')}/vdpau" for directory in directories))
    found = driver_root.find_files(root, with_vdpau, f"*.so.{version}")
    legacy = driver_root.find_files(root, directories, "libnvidia-nvvm70.so.*")
    return tuple(_library(root, path) for path in dict.fromkeys((*found, *legacy)))


def _with_explicit(
    root: RootedFiles, libraries: tuple[Library, ...], search: tuple[str, ...]
) -> tuple[Library, ...]:
    paths = (
        path
        for name in _EXPLICIT_LIBRARIES
        for path in driver_root.find_libraries(root, name, search)
    )
    known = {library.path for library in libraries}
    new = dict.fromkeys(path for path in paths if path not in known)
    return (*libraries, *(_library(root, path) for path in new))


def _library(root: RootedFiles, path: str) -> Library:
    directory, _, name = path.rpartition("/")
    soname = _soname(root, path)
    if soname is None:
        return Library(path, None, frozenset())
    soname = soname or name
    beside = {soname, hooks.so_name(soname)} - {""}
    links = (link for link in beside if root.readlink(f"{directory}/{link}") is not None)
    return Library(path, soname, frozenset(links))


def _soname(root: RootedFiles, path: str) -> str | None:
    file = root.open(path)
    if file is None:
        return None
    with file:
        try:
            return elf.soname(file)
        except elf.ElfError as error:
            _log.info("no links for %s: %s", path, error)
            return None
        except OSError as error:
            raise DiscoveryError(f"cannot read {path} below {root}: {error.strerror}") from error


def _graphics_libraries(root: RootedFiles, version: str, search: tuple[str, ...]) -> list[File]:
    linked = (f"libnvidia-allocator.so.{version}", f"libnvidia-vulkan-producer.so.{version}")
    return [
        File(path, path)
        for pattern in (*_EGL_PLATFORMS, *linked)
        for path in driver_root.find_libraries(root, pattern, search)
    ]


def _xorg_modules(root: RootedFiles, directories: tuple[str, ...], version: str) -> list[File]:
    search: list[str] = []
    for directory in directories:
        search.append(f"{directory.rstrip('/')}/nvidia/xorg")
        for base in (f"{directory.rstrip('/')}/xorg", *_XORG_BASES):
            search.extend(f"{base}/{modules}" for modules in _XORG_MODULES)
    return _first_of_each(root, search, ("nvidia_drv.so", f"libglxserver_nvidia.so.{version}"))


def _programs(root: RootedFiles, names: tuple[str, ...]) -> list[File]:
    found: list[File] = []
    for name in names:
        files = (_file(root, f"{directory}/{name}") for directory in _PROGRAM_DIRECTORIES)
        programs = (file for file in files if file is not None and _is_program(root, file))
        found.extend([program] if (program := next(programs, None)) is not None else [])
    return found


def _is_program(root: RootedFiles, file: File) -> bool:
    entry = root.lstat(file.source)
    return entry is not None and entry.is_executable


def _firmware(root: RootedFiles, sysfs: RootedFiles, version: str) -> list[File]:
    custom = (sysfs.read(_FIRMWARE_PATH) or b"").decode(errors="replace").strip()
    release = root.kernel_release()
    directories = [
        *([custom] if custom.startswith("/") else []),
        f"/lib/firmware/updates/{release}",
        "/lib/firmware/updates",
        f"/lib/firmware/{release}",
        "/lib/firmware",
    ]
    paths = dict.fromkeys(
        path
        for pattern in _FIRMWARE
        for directory in directories
        for path in root.glob(f"{directory}/nvidia/{version}", pattern)
    )
    return [file for path in paths if (file := _file(root, path)) is not None]


def _configs(root: RootedFiles, directories: tuple[str, ...]) -> list[File]:
    by_machine = f"vulkan/icd.d/nvidia_icd.{root.machine()}.json"
    found: list[File] = []
    for names, search, prefix in (
        (_SHARED_CONFIGS, directories, "/usr/share"),
        (_OPENCL_CONFIGS, directories, "/etc"),
        ((*_VULKAN_CONFIGS, by_machine), (*directories, "/"), "/etc"),
    ):
        for name in names:
            hits = _first_of_each(root, search, (name,))
            found.extend(File(f"{prefix}/{name}", hit.source) for hit in hits)
    return found


def mps_pipe(root: RootedFiles) -> File | None:
    """The pipe directory of an MPS daemon on the host, if there is one."""
    found = root.follow(_MPS_PIPE)
    return None if found is None or not found[1].is_directory else File(_MPS_PIPE, found[0])


def _first_of_each(
    root: RootedFiles, directories: tuple[str, ...] | list[str], names: tuple[str, ...]
) -> list[File]:
    """The files with these names, each from the first directory that contains it."""
    found: list[File] = []
    for name in names:
        files = (_file(root, f"{directory.rstrip('/')}/{name}") for directory in directories)
        first = next((file for file in files if file is not None), None)
        if first is None:
            _log.debug("no %s below %s", name, root)
        else:
            found.append(first)
    return found


def _file(root: RootedFiles, path: str) -> File | None:
    found = root.follow(path)
    return None if found is None or found[1].is_directory else File(path, found[0])


def gds_files(root: RootedFiles) -> tuple[File, ...]:
    """What GPUDirect Storage reads besides its device nodes, if it exists."""
    udev, config = root.follow(_GDS_DIRECTORY), _file(root, _GDS_CONFIG)
    return (
        *([File(_GDS_DIRECTORY, udev[0])] if udev is not None and udev[1].is_directory else []),
        *([config] if config is not None else []),
    )
