# SPDX-License-Identifier: Apache-2.0
"""The IMEX devices of this node, read from /proc each time they are needed.

The numbers can change when the driver is loaded again. The functions block: call them on the thread
for files. Source: docs/reference/compute-domain.md, "Device library", "Scalability and latency"
(KW-14).
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from nvdra_api.errors import PermanentError, Reason
from nvdra_runtime.node.host import Host
from nvdra_runtime.telemetry import logs

from nvdra_cd_plugin.node import device_numbers
from nvdra_cd_plugin.node.device_numbers import DeviceNumbers

LOG = logs.logger(__name__)

_CAPABILITY: Final = "driver/nvidia/capabilities/fabric-imex-mgmt"
_REMEDY: Final = "see that the NVIDIA kernel module is loaded and supports IMEX (nvidia-smi works)"


class ImexDevices:
    """The channels and capabilities of one node."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def channel_count(self) -> int:
        """The number of channels.

        Raises:
            PermanentError: `DeviceNodeMissing`: the kernel module was loaded without channels.
        """
        params = self._host.proc / "driver/nvidia/params"
        count = device_numbers.channel_count(_read_if_present(params))
        if count == 0:
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"{params} says that the NVIDIA kernel module has no IMEX channels",
                "load it with NVreg_ImexChannelCount=2048, or without that parameter",
            )
        return count

    def channels(self, first: int, count: int) -> tuple[DeviceNumbers, ...]:
        """`count` channels from `first` on; the host need not have device nodes for them.

        Raises:
            PermanentError: `DeviceNodeMissing`: the kernel module has no channels, or the path of
                the first one is another device.
        """
        major = self._major(device_numbers.CHANNELS_DRIVER)
        found = tuple(device_numbers.channel(first + number, major) for number in range(count))
        for device in found[:1]:
            self._check(device)
        return found

    def management_capability(self) -> DeviceNumbers:
        """The capability to manage IMEX.

        Raises:
            PermanentError: `DeviceNodeMissing`: the kernel module does not have it.
        """
        path = self._host.proc / _CAPABILITY
        text, major = _read(path), self._major(device_numbers.CAPABILITIES_DRIVER)
        try:
            return device_numbers.capability(text, major)
        except ValueError as error:
            raise PermanentError(Reason.DEVICE_NODE_MISSING, f"{path}: {error}", _REMEDY) from error

    def has_local_fabric(self) -> bool:
        """Whether the node manages the NVSwitches of its own NVLink fabric."""
        switches = self._host.proc / "driver/nvidia-nvswitch/devices"
        with suppress(OSError):  # the directory may be removed while it is read
            if any(switches.iterdir()):
                return True
        try:
            adapters = tuple(self._host.sys.glob("class/infiniband/*/device/vpd"))
        except OSError as error:
            LOG.warning("Failed to find the node's network adapters", error=str(error))
            return False
        return any(map(_manages_switches, adapters))

    def _check(self, device: DeviceNumbers) -> None:
        path = self._host.dev.parent / device.path.lstrip("/")
        try:
            node = path.stat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unreadable(path, error) from error
        numbers = (os.major(node.st_rdev), os.minor(node.st_rdev))
        if not stat.S_ISCHR(node.st_mode) or numbers != (device.major, device.minor):
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"{path} is not the channel's device {device.major}:{device.minor}",
                "remove it; nvidia-modprobe creates the right one",
                device=device.path,
            )

    def _major(self, driver: str) -> int:
        path = self._host.proc / "devices"
        major = device_numbers.major(_read(path), driver)
        if major is None:
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING, f"{path} does not list {driver}", _REMEDY
            )
        return major


def _manages_switches(vpd: Path) -> bool:
    """Whether an adapter's vital product data say so; many adapters do not let them be read."""
    try:
        return b"SW_MNG" in vpd.read_bytes()
    except OSError as error:
        LOG.v(
            2,
            "Failed to read the vital product data of an adapter",
            path=str(vpd),
            error=str(error),
        )
        return False


def _read_if_present(path: Path) -> str:
    """The content; empty if there is no such file."""
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise _unreadable(path, error) from error


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> PermanentError:
    return PermanentError(Reason.DEVICE_NODE_MISSING, f"{path}: {error.strerror}", _REMEDY)
