"""What a driver registers with the kubelet: names, socket paths, services.

Source: docs/reference/kubelet-plugin.md, "Plugin registration", "Service names", "Socket paths".
"""

from dataclasses import dataclass
from typing import Final

PLUGIN_TYPE: Final = "DRAPlugin"
DRA_SOCKET: Final = "dra.sock"
MAX_SOCKET_PATH_BYTES: Final = 107
"""Bytes of an AF_UNIX path: sun_path holds 108, the last is NUL."""

REGISTRATION_SERVICE: Final = "pluginregistration.Registration"
DRA_V1: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
DRA_V1BETA1: Final = "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"

SERVICES: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""The services that are advertised. Kubelets from 1.34 on use the first one that they support; 1.32
and 1.33 support v1beta1 only."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """The answer to GetInfo."""

    driver: str
    endpoint: str
    services: tuple[str, ...] = SERVICES


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """The sockets of one driver; the same absolute paths inside and outside its container."""

    dra: str
    registration: str


def socket_paths(driver: str, plugin_dir: str, registry_dir: str) -> SocketPaths:
    """The paths of a driver's sockets.

    Args:
        driver: `gpu.nvidia.com`.
        plugin_dir: The driver's own directory, `<kubelet root>/plugins/<driver>`.
        registry_dir: `<kubelet root>/plugins_registry`, which the kubelet watches.

    Raises:
        ValueError: A path is relative, or longer than the kernel allows for a socket.
    """
    paths = SocketPaths(
        dra=f"{plugin_dir.rstrip('/')}/{DRA_SOCKET}",
        registration=f"{registry_dir.rstrip('/')}/{driver}-reg.sock",
    )
    for path in (paths.dra, paths.registration):
        if not path.startswith("/"):
            raise ValueError(f"socket path {path} is relative; the kubelet dials it as it is")
        if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"socket path {path} has {len(path.encode())} bytes, {MAX_SOCKET_PATH_BYTES} are "
                "allowed; choose a shorter kubelet root"
            )
    return paths


def plugin_info(driver: str, paths: SocketPaths) -> PluginInfo:
    """The answer to GetInfo."""
    return PluginInfo(driver=driver, endpoint=paths.dra)
