"""Find the driver's files and a GPU's device nodes, through `Host` only.

The lists of names are those of toolkit 1.20.1 (spec/cdi.md §§13.6, 14, 16.1).
What a driver may come without is left out silently; what a container cannot do without raises
`DiscoveryError`.
"""

import logging

from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.host import Host
from nvdra_cdi.nvidia import elf, hooks, roots
from nvdra_cdi.nvidia.facts import Driver, File, GpuNodes, Library, Node
from nvdra_cdi.nvidia.options import Gpu

_CONTROL_NODES = (
    "/dev/nvidia-modeset",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-uvm",
    "/dev/nvidiactl",
)
_PROGRAM_DIRECTORIES = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)
_PROGRAMS = (
    "nvidia-xconfig",
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
_PERMISSIONS = 0o7777

_log = logging.getLogger(__name__)


def driver(root: Host, sysfs: Host, expected_version: str | None) -> Driver:
    """The driver below `root`.

    Raises:
        DiscoveryError: There is none, or one of another version than expected.
    """
    version = roots.version(root, expected_version)
    directories = roots.library_directories(root, version)
    libraries = _libraries(root, directories, version)
    if not libraries:
        raise DiscoveryError(f"no library of driver {version} below {root}")
    return Driver(
        version=version,
        directories=directories,
        libraries=libraries,
        graphics_libraries=(
            *_graphics_libraries(root, version),
            *_xorg_modules(root, directories, version),
        ),
        files=(*_programs(root), *_firmware(root, sysfs, version), *_configs(root)),
        sockets=tuple(_first_of_each(root, _SOCKET_DIRECTORIES, _SOCKETS)),
    )


def control_nodes(devices: Host) -> tuple[Node, ...]:
    """The nodes that every container with a GPU gets, those that exist."""
    return _nodes(devices, _CONTROL_NODES)


def gpu_nodes(devices: Host, sysfs: Host, board: Gpu) -> GpuNodes:
    """A GPU's own node and its DRM nodes, with the links by which DRM clients find them.

    Raises:
        DiscoveryError: The GPU's own node is not there.
    """
    drm = sysfs.names(f"/bus/pci/devices/{board.pci_address}/drm")
    wanted = [f"/dev/dri/{name}" for name in drm if name.startswith(("card", "renderD"))]
    nodes = _nodes(devices, (board.node, *wanted))
    if not nodes or nodes[0].path != board.node:
        raise DiscoveryError(f"no device node {board.node} below {devices} for {board.uuid}")
    return GpuNodes(nodes, tuple(_by_path(devices, board, nodes)))


def _libraries(root: Host, directories: tuple[str, ...], version: str) -> tuple[Library, ...]:
    with_vdpau = (*directories, *(f"{directory.rstrip('/')}/vdpau" for directory in directories))
    found = roots.find_in(root, with_vdpau, f"*.so.{version}")
    legacy = roots.find_in(root, directories, "libnvidia-nvvm70.so.*")
    return tuple(_library(root, path) for path in dict.fromkeys((*found, *legacy)))


def _library(root: Host, path: str) -> Library:
    directory, _, name = path.rpartition("/")
    soname = _soname(root, path)
    if soname is None:
        return Library(path, None, frozenset())
    soname = soname or name
    beside = {soname, hooks.so_name(soname)} - {""}
    links = (link for link in beside if root.readlink(f"{directory}/{link}") is not None)
    return Library(path, soname, frozenset(links))


def _soname(root: Host, path: str) -> str | None:
    file = root.open(path)
    if file is None:
        return None
    with file:
        try:
            return elf.soname(file)
        except elf.ElfError as error:
            _log.info("no links for %s: %s", path, error)
            return None


def _graphics_libraries(root: Host, version: str) -> list[File]:
    linked = (f"libnvidia-allocator.so.{version}", f"libnvidia-vulkan-producer.so.{version}")
    return [
        File(path, path)
        for pattern in (*_EGL_PLATFORMS, *linked)
        for path in roots.find_libraries(root, pattern)
    ]


def _xorg_modules(root: Host, directories: tuple[str, ...], version: str) -> list[File]:
    search: list[str] = []
    for directory in directories:
        search.append(f"{directory.rstrip('/')}/nvidia/xorg")
        for base in (f"{directory.rstrip('/')}/xorg", *_XORG_BASES):
            search.extend(f"{base}/{modules}" for modules in _XORG_MODULES)
    return _first_of_each(root, search, ("nvidia_drv.so", f"libglxserver_nvidia.so.{version}"))


def _programs(root: Host) -> list[File]:
    found: list[File] = []
    for name in _PROGRAMS:
        files = (_file(root, f"{directory}/{name}") for directory in _PROGRAM_DIRECTORIES)
        programs = (file for file in files if file is not None and _is_program(root, file))
        found.extend([program] if (program := next(programs, None)) is not None else [])
    return found


def _is_program(root: Host, file: File) -> bool:
    entry = root.lstat(file.source)
    return entry is not None and entry.is_executable


def _firmware(root: Host, sysfs: Host, version: str) -> list[File]:
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


def _configs(root: Host) -> list[File]:
    by_machine = f"vulkan/icd.d/nvidia_icd.{root.machine()}.json"
    found: list[File] = []
    for names, search, prefix in (
        (_SHARED_CONFIGS, _CONFIG_DIRECTORIES, "/usr/share"),
        (_OPENCL_CONFIGS, _CONFIG_DIRECTORIES, "/etc"),
        ((*_VULKAN_CONFIGS, by_machine), (*_CONFIG_DIRECTORIES, "/"), "/etc"),
    ):
        for name in names:
            hits = _first_of_each(root, search, (name,))
            found.extend(File(f"{prefix}/{name}", hit.source) for hit in hits)
    return found


def _first_of_each(
    root: Host, directories: tuple[str, ...] | list[str], names: tuple[str, ...]
) -> list[File]:
    """For each name the first directory that has it."""
    found: list[File] = []
    for name in names:
        files = (_file(root, f"{directory.rstrip('/')}/{name}") for directory in directories)
        first = next((file for file in files if file is not None), None)
        if first is None:
            _log.debug("no %s below %s", name, root)
        else:
            found.append(first)
    return found


def _file(root: Host, path: str) -> File | None:
    found = root.follow(path)
    return None if found is None or found[1].is_directory else File(path, found[0])


def _nodes(devices: Host, paths: tuple[str, ...]) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for path in paths:
        found = devices.follow(path)
        if found is None or not found[1].is_character_device:
            _log.warning("no character device %s below %s, left out", path, devices)
            continue
        source, entry = found
        mode = entry.mode & _PERMISSIONS
        nodes.append(Node(path, source, entry.major, entry.minor, mode, entry.gid))
    return tuple(nodes)


def _by_path(devices: Host, board: Gpu, nodes: tuple[Node, ...]) -> list[tuple[str, str]]:
    ours = {node.source for node in nodes}
    links: list[tuple[str, str]] = []
    for suffix in ("card", "render"):
        path = f"/dev/dri/by-path/pci-{board.pci_address}-{suffix}"
        target = devices.readlink(path)
        if target is not None and devices.resolve(path) in ours:
            links.append((path, target))
    return links
