"""How a driver introduces itself to the kubelet: names, paths, services.

Decisions only; `runtime/kubelet` listens. Source: spec/kubelet-dra-protocol.md §1, §2.1, §8.1.
"""

from dataclasses import dataclass
from typing import Final

PLUGIN_TYPE: Final = "DRAPlugin"
DRA_SOCKET: Final = "dra.sock"
LONGEST_PATH: Final = 107
"""Bytes of an AF_UNIX path: sun_path holds 108, the last is NUL."""

REGISTRATION_SERVICE: Final = "pluginregistration.Registration"
DRA_V1: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
DRA_V1BETA1: Final = "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"

SERVICES: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""What we advertise. The kubelet (≥ 1.34) takes the first that it knows, in our order; 1.32 and
1.33 look for v1beta1 alone."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """The answer to GetInfo."""

    driver: str
    endpoint: str
    services: tuple[str, ...] = SERVICES


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where one driver listens on a node; the same absolute paths in its container and outside."""

    dra: str
    registration: str


def sockets(driver: str, plugin_dir: str, registry_dir: str) -> Sockets:
    """Name both sockets of a driver.

    Args:
        driver: `gpu.nvidia.com`.
        plugin_dir: The driver's own directory, `<kubelet root>/plugins/<driver>`.
        registry_dir: `<kubelet root>/plugins_registry`, which the kubelet watches.

    Raises:
        ValueError: a path is relative, or longer than the kernel allows for a socket.
    """
    paths = Sockets(
        dra=f"{plugin_dir.rstrip('/')}/{DRA_SOCKET}",
        registration=f"{registry_dir.rstrip('/')}/{driver}-reg.sock",
    )
    for path in (paths.dra, paths.registration):
        if not path.startswith("/"):
            raise ValueError(f"socket path {path} is relative; the kubelet dials it as it is")
        if len(path.encode()) > LONGEST_PATH:
            raise ValueError(
                f"socket path {path} has {len(path.encode())} bytes, {LONGEST_PATH} are allowed; "
                "choose a shorter kubelet root"
            )
    return paths


def info(driver: str, paths: Sockets) -> PluginInfo:
    """What the kubelet is told when it finds the registration socket."""
    return PluginInfo(driver=driver, endpoint=paths.dra)
