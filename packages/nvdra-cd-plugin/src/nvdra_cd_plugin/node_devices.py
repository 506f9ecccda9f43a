"""Which of IMEX's devices this node has, read from its /proc whenever somebody needs to know.

A reloaded driver may have other numbers. Blocks: called on the thread for files.
Source: spec/compute-domain.md §7.3, §14.1 (KW-14).
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.errors import PermanentError, Reason

from nvdra_cd_plugin import channels
from nvdra_cd_plugin.channels import DeviceNumbers

LOG = logs.logger(__name__)

_CAPABILITY: Final = "driver/nvidia/capabilities/fabric-imex-mgmt"
_REMEDY: Final = "see that the NVIDIA kernel module is loaded and supports IMEX (nvidia-smi works)"


class NodeDevices:
    """The devices of one node."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def count(self) -> int:
        """How many channels there are.

        Raises:
            PermanentError: `DeviceNodeMissing`: the kernel module was told to have none.
        """
        params = self._host.proc / "driver/nvidia/params"
        count = channels.count(_read(params) if params.exists() else "")
        if count == 0:
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"{params} says that the NVIDIA kernel module has no IMEX channels",
                "load it with NVreg_ImexChannelCount=2048, or without that parameter",
            )
        return count

    def channels(self, first: int, count: int) -> tuple[DeviceNumbers, ...]:
        """`count` channels from `first` on; the host need not have nodes for them.

        Raises:
            PermanentError: `DeviceNodeMissing`: the kernel module has none, or there is a node in
                the place of the first that is another device.
        """
        major = self._major(channels.CHANNELS_DRIVER)
        found = tuple(channels.channel(first + number, major) for number in range(count))
        for device in found[:1]:
            self._check(device)
        return found

    def capability(self) -> DeviceNumbers:
        """The right to manage IMEX.

        Raises:
            PermanentError: `DeviceNodeMissing`: the kernel module does not give it.
        """
        path = self._host.proc / _CAPABILITY
        text, major = _read(path), self._major(channels.CAPABILITIES_DRIVER)
        try:
            return channels.capability(text, major)
        except ValueError as error:
            raise PermanentError(Reason.DEVICE_NODE_MISSING, f"{path}: {error}", _REMEDY) from error

    def has_local_fabric(self) -> bool:
        """Whether the node's NVLink fabric is its own, of NVSwitches that it manages itself."""
        switches = self._host.proc / "driver/nvidia-nvswitch/devices"
        with suppress(OSError):  # a directory of drivers may go while it is read
            if any(switches.iterdir()):
                return True
        boards = self._host.sys.glob("class/infiniband/*/device/vpd")
        return any(_manages_switches(board) for board in boards)

    def _check(self, device: DeviceNumbers) -> None:
        path = self._host.dev.parent / device.path.lstrip("/")
        try:
            node = path.stat()
        except FileNotFoundError:
            return
        numbers = (os.major(node.st_rdev), os.minor(node.st_rdev))
        if not stat.S_ISCHR(node.st_mode) or numbers != (device.major, device.minor):
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING,
                f"{path} is not device {device.major}:{device.minor}, which is the channel",
                "remove it; nvidia-modprobe makes the right one",
                device=device.path,
            )

    def _major(self, driver: str) -> int:
        path = self._host.proc / "devices"
        major = channels.major(_read(path), driver)
        if major is None:
            raise PermanentError(
                Reason.DEVICE_NODE_MISSING, f"{path} does not list {driver}", _REMEDY
            )
        return major


def _manages_switches(vpd: Path) -> bool:
    """Whether a board's vital product data say so; many boards do not let them be read."""
    try:
        return b"SW_MNG" in vpd.read_bytes()
    except OSError as error:
        LOG.v(2, "A board does not tell what it is", path=str(vpd), error=str(error))
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise PermanentError(
            Reason.DEVICE_NODE_MISSING, f"{path}: {error.strerror}", _REMEDY
        ) from error
