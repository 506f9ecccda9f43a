# SPDX-License-Identifier: Apache-2.0
"""What a driver registers with the kubelet: names, socket paths, services.

Source: docs/reference/kubelet-plugin.md, "Plugin registration", "Service names", "Socket paths".
"""

import base64
import hashlib
import re
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

HEALTH_SERVICES: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The services for the health of devices, as they are advertised and as gRPC knows them. Kubelets
from 1.37 on use the first one; 1.34 to 1.36 call v1alpha1 whether it is advertised or not."""


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


def instance_socket_paths(
    driver: str, plugin_dir: str, registry_dir: str, pod_uid: str
) -> SocketPaths | None:
    """The paths of an instance that runs beside another one, named after its pod.

    Source: docs/reference/kubelet-plugin.md, "Files and directories"; the hashed names are those of
    the Go helper 0.37, for paths that would be too long.

    Returns:
        None if a path is too long even so, or if the pod is not known.
    """
    if not pod_uid:
        return None
    uid = pod_uid.encode()
    short = _base64(hashlib.sha256(uid).digest()[:8])
    shortest = _base64(hashlib.sha256(driver.encode() + b"\0" + uid).digest()[:16])
    dra = _first_that_fits(plugin_dir, f"dra-{pod_uid}.sock", f"dra-{short}.sock")
    registration = _first_that_fits(
        registry_dir,
        f"{driver}-{pod_uid}-reg.sock",
        f"{driver}-{short}-reg.sock",
        f"dra-{shortest}-reg.sock",
    )
    return SocketPaths(dra, registration) if dra and registration else None


def is_dra_socket(name: str) -> bool:
    """Whether a file in a driver's directory has the name of a DRA socket of an instance."""
    return name == DRA_SOCKET or re.fullmatch(r"dra-[\w-]+\.sock", name) is not None


def is_registration_socket(driver: str, name: str) -> bool:
    """Whether a file in the registry has the name of a registration socket of this driver.

    The names without the driver's, for very long paths, may be those of any driver.
    """
    instance = rf"(-({_UID}|[\w-]{{11}}))?"
    return re.fullmatch(rf"{re.escape(driver)}{instance}-reg\.sock", name) is not None


_UID: Final = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def _first_that_fits(directory: str, *names: str) -> str:
    paths = (f"{directory.rstrip('/')}/{name}" for name in names)
    return next((path for path in paths if len(path.encode()) <= MAX_SOCKET_PATH_BYTES), "")


def _base64(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


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


def plugin_info(driver: str, paths: SocketPaths, *, reports_health: bool = False) -> PluginInfo:
    """The answer to GetInfo."""
    services = (*SERVICES, *HEALTH_SERVICES) if reports_health else SERVICES
    return PluginInfo(driver=driver, endpoint=paths.dra, services=services)
