"""The CDI document as immutable values: a spec, its devices and their edits (spec/cdi.md §1).

Nothing here checks a rule or knows a format; `validate` and `codec` do. Sequences are tuples, so
that edits can be compared, hashed and shared without anybody changing them underneath. `None`
stands for "absent" where the document tells absent from zero; elsewhere zero and empty mean absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node in the container.

    Attributes:
        path: Where, in the container.
        host_path: Where on the host, when that differs.
        type: `b`, `c`, `u` (unbuffered character) or `p` (FIFO); empty: the runtime asks the host.
        major: Device number; 0 with `minor` 0 means "ask the host".
        minor: Device number; runtimes take an absent one as 0 when type and major are present.
        file_mode: Permission bits, 0o666 for instance.
        permissions: Cgroup access: letters of `rwm`, or `none`; empty means `rwm`.
        uid: Owner; absent: the container's user.
        gid: Group; absent: the container's group.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class NetDevice:
    """A network interface of the host that moves into the container."""

    host_interface_name: str
    name: str


@dataclass(frozen=True, slots=True)
class Hook:
    """A program run by the runtime at one point of a container's life.

    Attributes:
        hook_name: `prestart`, `createRuntime`, `createContainer`, `startContainer`, `poststart`
            or `poststop`.
        path: The executable, on the host except for `startContainer`.
        args: The whole argument vector, with argv[0].
        env: `NAME=value` entries.
        timeout: Seconds.
    """

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount in the container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


@dataclass(frozen=True, slots=True)
class IntelRdt:
    """A cache and memory bandwidth class.

    `enable_cmt` and `enable_mbm` exist from 0.7.0 to 1.0.0 only, `schemata` and `enable_monitoring`
    from 1.1.0; a `schemata` that is present but empty counts as used.
    """

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool = False
    enable_cmt: bool = False
    enable_mbm: bool = False


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What is done to a container.

    Edits add up with `+`, in order; a later `intel_rdt` replaces an earlier one.
    """

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    def __add__(self, other: "ContainerEdits") -> "ContainerEdits":
        return ContainerEdits(
            env=self.env + other.env,
            device_nodes=self.device_nodes + other.device_nodes,
            net_devices=self.net_devices + other.net_devices,
            hooks=self.hooks + other.hooks,
            mounts=self.mounts + other.mounts,
            intel_rdt=other.intel_rdt or self.intel_rdt,
            additional_gids=self.additional_gids + other.additional_gids,
        )

    def __bool__(self) -> bool:
        """Whether there is any edit."""
        return self != _NO_EDITS


_NO_EDITS = ContainerEdits()


def _frozen(pairs: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(pairs))


@dataclass(frozen=True, slots=True)
class Device:
    """A device that containers can ask for by name.

    Attributes:
        name: Unique inside the spec.
        container_edits: At least one edit.
        annotations: For people; never injected.
    """

    name: str
    container_edits: ContainerEdits = _NO_EDITS
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        object.__setattr__(self, "annotations", _frozen(self.annotations))


@dataclass(frozen=True, slots=True)
class Spec:
    """One CDI document: devices of one kind.

    Attributes:
        kind: `vendor/class`.
        devices: At least one.
        container_edits: Applied once per container as soon as it asks for any of the devices.
        annotations: For people; never injected.
        version: `cdiVersion`; `version.minimum_required` computes the lowest possible one.
    """

    kind: str
    devices: tuple[Device, ...]
    container_edits: ContainerEdits = _NO_EDITS
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    version: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "annotations", _frozen(self.annotations))
