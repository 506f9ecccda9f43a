# SPDX-License-Identifier: Apache-2.0
"""The input of the generator: options, and the devices as NVML describes them.

A *root* is the top directory of a file tree. The same tree can have two paths: the one at which the
generator reads it, perhaps in a container, and the one on the host, which container runtimes use
(`target_…`).
"""

import posixpath
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class HookName(StrEnum):
    """The sub-commands of `nvidia-cdi-hook` (docs/reference/cdi.md §15.2)."""

    CREATE_SYMLINKS = "create-symlinks"
    CHMOD = "chmod"
    UPDATE_LDCACHE = "update-ldcache"
    ENABLE_CUDA_COMPAT = "enable-cuda-compat"
    DISABLE_DEVICE_NODE_MODIFICATION = "disable-device-node-modification"
    UPDATE_APPLICATION_PROFILE = "update-application-profile"
    APPLY_CUDA_MEMORY_LIMITS = "apply-cuda-memory-limits"


NEW_IN_1_20 = frozenset((HookName.UPDATE_APPLICATION_PROFILE, HookName.APPLY_CUDA_MEMORY_LIMITS))
"""Hooks that the reference driver does not have, because it uses toolkit 1.19.

They are disabled for the devices of claims.
"""


class Feature(StrEnum):
    """Feature flags, with the names of the NVIDIA Container Toolkit.

    Source: docs/reference/cdi.md §13.1.
    """

    EXPLICIT_DRIVER_LIBRARIES = "enable-explicit-driver-libraries"
    COHERENT_ANNOTATIONS = "enable-coherent-annotations"
    NO_ADDITIONAL_GIDS = "no-additional-gids-for-device-nodes"
    NO_IPC = "disable-ipc-discoverer"


class GatedMode(StrEnum):
    """The modes for devices of other drivers (docs/reference/cdi.md §17.3)."""

    GDS = "gds"
    GDRCOPY = "gdrcopy"
    MOFED = "mofed"
    NVSWITCH = "nvswitch"


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("must be an absolute path")
    return "/" + posixpath.normpath(path).lstrip("/")


AbsolutePath = Annotated[str, AfterValidator(_absolute)]


def _target_dev_root(data: dict[str, Any]) -> str:
    same = data["dev_root"] == data["driver_root"]
    return str(data["target_driver_root"] if same else data["dev_root"])


class Options(BaseModel):
    """The options of the generator. All paths are absolute.

    Attributes:
        driver_root: The root of the driver's libraries, programs and files, as the generator sees
            it.
        target_driver_root: The path of the same tree on the host. Default: `driver_root`.
        dev_root: The root whose `dev/` contains the device nodes. Default: `driver_root`. The
            function `driver_root.dev_root` detects it.
        target_dev_root: The path of the same tree on the host. Default: `target_driver_root` if
            both roots are the same, else `dev_root`.
        sys_root: sysfs, to find the DRM nodes of a GPU and the kernel's firmware path.
        proc_root: procfs, to find the capabilities of MIG instances.
        library_search_paths: Directories in the driver root that replace the default ones and the
            cache of the dynamic linker.
        config_search_paths: Directories for configuration files that replace the default ones.
        hook_path: The path of `nvidia-cdi-hook` on the host.
        ldconfig_path: Passed to the `update-ldcache` hook. Default: the hook chooses.
        driver_version: The version that NVML reports, which the libraries must have. Default: the
            version of the libraries.
        disabled_hooks: Hooks to leave out; `all` means every hook. `chmod` is always disabled.
        enabled_hooks: Hooks to include. Takes precedence over `disabled_hooks`.
        features: The feature flags that are set.
        mps_pipe: `auto` mounts the pipe directory of an MPS daemon on the host, if there is one.
            The default is `off`, because with `auto` every container could use the daemon.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    driver_root: AbsolutePath = "/"
    target_driver_root: AbsolutePath = Field(default_factory=lambda data: data["driver_root"])
    dev_root: AbsolutePath = Field(default_factory=lambda data: data["driver_root"])
    target_dev_root: AbsolutePath = Field(default_factory=_target_dev_root)
    sys_root: AbsolutePath = "/sys"
    proc_root: AbsolutePath = "/proc"
    library_search_paths: tuple[AbsolutePath, ...] = ()
    config_search_paths: tuple[AbsolutePath, ...] = ()
    hook_path: AbsolutePath = "/usr/bin/nvidia-cdi-hook"
    ldconfig_path: AbsolutePath | None = None
    driver_version: str | None = None
    disabled_hooks: frozenset[HookName | Literal["all"]] = frozenset()
    enabled_hooks: frozenset[HookName] = frozenset()
    features: frozenset[Feature] = frozenset()
    mps_pipe: Literal["off", "auto"] = "off"

    def allows(self, hook: HookName) -> bool:
        """Whether this hook is enabled. Enabling takes precedence over disabling."""
        off = hook is HookName.CHMOD or hook in self.disabled_hooks or "all" in self.disabled_hooks
        return hook in self.enabled_hooks or not off


class Naming(StrEnum):
    """How devices of a spec are named (docs/reference/cdi.md §13.3): `0:1`, `mig0:1` or by UUID."""

    INDEX = "index"
    TYPE_INDEX = "type-index"
    UUID = "uuid"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A whole GPU.

    Attributes:
        uuid: `GPU-…`.
        minor: The minor number that NVML reports, which is the N of `/dev/nvidiaN`. It may differ
            from the index.
        pci_bus_id: `0000:3b:00.0`, or the eight-digit upper-case form of NVML.
        index: The index that NVML reports, for the device name.
        has_mig_mode: Whether MIG mode is enabled. Such a GPU is a device only on request.
        is_coherent: Whether the addressing mode is ATS.
    """

    uuid: str
    minor: int
    pci_bus_id: str
    index: int = 0
    has_mig_mode: bool = False
    is_coherent: bool = False

    @property
    def device_node_path(self) -> str:
        """The path of the GPU's device node."""
        return f"/dev/nvidia{self.minor}"

    @property
    def pci_address(self) -> str:
        """The PCI address as in sysfs: `0000:3b:00.0`."""
        domain, _, rest = self.pci_bus_id.lower().partition(":")
        return f"{int(domain, 16):04x}:{rest}"

    def name(self, naming: Naming) -> str:
        """The name of the device in a spec."""
        index = str(self.index)
        return {Naming.INDEX: index, Naming.TYPE_INDEX: f"gpu{index}", Naming.UUID: self.uuid}[
            naming
        ]


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A compute instance of a GPU in MIG mode.

    Attributes:
        uuid: `MIG-…`.
        parent: The GPU.
        gpu_instance: The id of the GPU instance.
        compute_instance: The id of the compute instance in the GPU instance.
        index: The index of the MIG device on its GPU, as NVML reports it.
        is_graphics: Whether the profile has the graphics attribute (`+gfx`).
    """

    uuid: str
    parent: Gpu
    gpu_instance: int
    compute_instance: int
    index: int
    is_graphics: bool = False

    @property
    def legacy_uuid(self) -> str:
        """The UUID in the form of drivers before 470."""
        return f"MIG-{self.parent.uuid}/{self.gpu_instance}/{self.compute_instance}"

    def name(self, naming: Naming) -> str:
        """The name of the device in a spec."""
        index = f"{self.parent.index}:{self.index}"
        return {Naming.INDEX: index, Naming.TYPE_INDEX: f"mig{index}", Naming.UUID: self.uuid}[
            naming
        ]


@dataclass(frozen=True, slots=True)
class NoDevice:
    """The device `none`, which only sets an environment variable in the container."""

    def name(self, _: Naming) -> str:
        """The name of the device in a spec."""
        return "none"


AnyDevice = Gpu | MigDevice | NoDevice


def join_root(root: str, path: str) -> str:
    """The full path of a path within a root."""
    return path if root == "/" else root + path


def strip_root(root: str, path: str) -> str | None:
    """The path within a root of a full path, or None if it is not below the root."""
    if root == "/":
        return path
    inside = path.removeprefix(root)
    return inside if path != inside and inside.startswith("/") else None
