"""What a caller tells the generator: where things are, and what to leave out or to add.

A *root* is a directory with a tree in it. The same tree may have two places: where we read it, from
inside a container perhaps, and where the container runtime on the host finds it (`target_…`). Here
are also the devices that edits are wanted for, as NVML describes them.
"""

import posixpath
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class HookName(StrEnum):
    """The sub-commands of `nvidia-cdi-hook` (spec/cdi.md §15.2)."""

    CREATE_SYMLINKS = "create-symlinks"
    CHMOD = "chmod"
    UPDATE_LDCACHE = "update-ldcache"
    ENABLE_CUDA_COMPAT = "enable-cuda-compat"
    DISABLE_DEVICE_NODE_MODIFICATION = "disable-device-node-modification"
    UPDATE_APPLICATION_PROFILE = "update-application-profile"
    APPLY_CUDA_MEMORY_LIMITS = "apply-cuda-memory-limits"


NEW_IN_1_20 = frozenset((HookName.UPDATE_APPLICATION_PROFILE, HookName.APPLY_CUDA_MEMORY_LIMITS))
"""The hooks that the reference driver, built on toolkit 1.19, lacks: off in claims' devices."""


class Feature(StrEnum):
    """What can be switched from the usual, by the toolkit's names (spec/cdi.md §13.1)."""

    EXPLICIT_DRIVER_LIBRARIES = "enable-explicit-driver-libraries"
    COHERENT_ANNOTATIONS = "enable-coherent-annotations"
    NO_ADDITIONAL_GIDS = "no-additional-gids-for-device-nodes"
    NO_IPC = "disable-ipc-discoverer"


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("must be an absolute path")
    return "/" + posixpath.normpath(path).lstrip("/")


AbsolutePath = Annotated[str, AfterValidator(_absolute)]


def _target_dev_root(data: dict[str, Any]) -> str:
    same = data["dev_root"] == data["driver_root"]
    return str(data["target_driver_root"] if same else data["dev_root"])


class Options(BaseModel):
    """Where to look, what to write. All paths are absolute.

    Attributes:
        driver_root: The driver's libraries, programs and files, as we read them.
        target_driver_root: The same tree as the host sees it; default: `driver_root`.
        dev_root: The tree whose `dev/` has the device nodes; default: `driver_root`, and
            `roots.dev_root` finds out.
        target_dev_root: The same tree as the host sees it; default: that of the driver root where
            both are one, else `dev_root`.
        sys_root: sysfs, for a GPU's DRM nodes and the kernel's firmware path.
        proc_root: procfs, for the capabilities of MIG instances.
        library_search_paths: Directories inside the driver root that replace the usual ones.
        config_search_paths: The same for configuration files.
        hook_path: `nvidia-cdi-hook` on the host.
        ldconfig_path: Passed to the `update-ldcache` hook; default: the hook's own.
        driver_version: As NVML says, and then the libraries must agree; default: the libraries'.
        disabled_hooks: Hooks to leave out; `all` leaves out every one. `chmod` is always out.
        enabled_hooks: Hooks to put in whatever `disabled_hooks` says.
        features: What else is not as usual.
        mps_pipe: `auto` mounts the directory of a host's MPS daemon where there is one; it would
            let every container in, so `off` is the default.
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
        """Whether this hook may be written; enabling wins over disabling."""
        off = hook is HookName.CHMOD or hook in self.disabled_hooks or "all" in self.disabled_hooks
        return hook in self.enabled_hooks or not off


class Naming(StrEnum):
    """How devices of a spec are called (spec/cdi.md §13.3): `0:1`, `mig0:1` or by UUID."""

    INDEX = "index"
    TYPE_INDEX = "type-index"
    UUID = "uuid"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A whole GPU.

    Attributes:
        uuid: `GPU-…`.
        minor: NVML's minor number, not its index: the N of `/dev/nvidiaN`.
        pci_bus_id: `0000:3b:00.0`, or in NVML's eight-digit upper-case form.
        index: NVML's, for its name.
        has_mig_mode: Whether MIG mode is on: then it is no device by itself, unless asked for.
        is_coherent: Whether its addressing mode is ATS.
    """

    uuid: str
    minor: int
    pci_bus_id: str
    index: int = 0
    has_mig_mode: bool = False
    is_coherent: bool = False

    @property
    def node(self) -> str:
        """Its own device node."""
        return f"/dev/nvidia{self.minor}"

    @property
    def pci_address(self) -> str:
        """The PCI address in sysfs' form: `0000:3b:00.0`."""
        domain, _, rest = self.pci_bus_id.lower().partition(":")
        return f"{int(domain, 16):04x}:{rest}"

    def name(self, naming: Naming) -> str:
        """What it is called in a spec."""
        index = str(self.index)
        return {Naming.INDEX: index, Naming.TYPE_INDEX: f"gpu{index}", Naming.UUID: self.uuid}[
            naming
        ]


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A compute instance of a GPU in MIG mode.

    Attributes:
        uuid: `MIG-…`.
        parent: Its GPU.
        gpu_instance: Id of the GPU instance.
        compute_instance: Id of the compute instance in it.
        index: NVML's index of the device on its GPU.
        is_graphics: Whether its profile has the graphics attribute (`+gfx`).
    """

    uuid: str
    parent: Gpu
    gpu_instance: int
    compute_instance: int
    index: int
    is_graphics: bool = False

    @property
    def legacy_uuid(self) -> str:
        """How drivers before 470 called it."""
        return f"MIG-{self.parent.uuid}/{self.gpu_instance}/{self.compute_instance}"

    def name(self, naming: Naming) -> str:
        """What it is called in a spec."""
        index = f"{self.parent.index}:{self.index}"
        return {Naming.INDEX: index, Naming.TYPE_INDEX: f"mig{index}", Naming.UUID: self.uuid}[
            naming
        ]


@dataclass(frozen=True, slots=True)
class NoDevice:
    """What `none` stands for: a device that gives nothing but a mark."""

    def name(self, _: Naming) -> str:
        """What it is called in a spec."""
        return "none"


AnyDevice = Gpu | MigDevice | NoDevice


def joined(root: str, path: str) -> str:
    """A path inside a root as a path outside it."""
    return path if root == "/" else root + path


def split_off(root: str, path: str) -> str | None:
    """A path outside a root as a path inside it; None when it is not in there."""
    if root == "/":
        return path
    inside = path.removeprefix(root)
    return inside if path != inside and inside.startswith("/") else None
