# SPDX-License-Identifier: Apache-2.0
"""A CDI document as immutable values: a spec, its devices and their edits.

This module checks no rules and knows no file format: see `validation` and `codec`. Sequences are
tuples, so that edits can be compared, hashed and shared safely. Where the document distinguishes
an absent value from zero, `None` means absent. Elsewhere, zero and empty values mean absent.

Source: docs/reference/cdi.md §1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node in the container.

    Attributes:
        path: The path in the container.
        host_path: The path on the host, if it is different.
        type: `b`, `c`, `u` (unbuffered character) or `p` (FIFO). If it is empty, the runtime looks
            the type up on the host.
        major: The major device number. If `major` and `minor` are 0, the runtime looks both up on
            the host.
        minor: The minor device number. Runtimes read an absent minor as 0 if type and major are
            present.
        file_mode: The permission bits, for example 0o666.
        permissions: The cgroup access: letters of `rwm`, or `none`. Empty means `rwm`.
        uid: The owner. None means the container's user.
        gid: The group. None means the container's group.
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
    """A network interface of the host that the runtime moves into the container."""

    host_interface_name: str
    name: str


@dataclass(frozen=True, slots=True)
class Hook:
    """A program that the runtime runs at one point of the container's lifecycle.

    Attributes:
        hook_name: `prestart`, `createRuntime`, `createContainer`, `startContainer`, `poststart`
            or `poststop`.
        path: The executable, on the host. A `startContainer` hook runs one of the container.
        args: The whole argument vector, including argv[0].
        env: `NAME=value` entries.
        timeout: In seconds.
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
    """A class of Intel RDT, which controls cache and memory bandwidth.

    `enable_cmt` and `enable_mbm` exist only in versions 0.7.0 to 1.0.0. `schemata` and
    `enable_monitoring` exist since 1.1.0; an empty `schemata` counts as present.
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
    """The changes that a runtime makes to a container.

    `+` concatenates edits in order. A later `intel_rdt` replaces an earlier one.
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
        """Whether there are any edits."""
        return self != _NO_EDITS


_NO_EDITS = ContainerEdits()


class _Annotations(Mapping[str, str]):
    """Annotations that cannot change, so that documents can be hashed, copied and pickled."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Mapping[str, str]) -> None:
        self._pairs = dict(pairs)

    def __getitem__(self, key: str) -> str:
        return self._pairs[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __hash__(self) -> int:
        return hash(frozenset(self._pairs.items()))

    def __repr__(self) -> str:
        return repr(self._pairs)

    def __reduce__(self) -> tuple[type["_Annotations"], tuple[dict[str, str]]]:
        return type(self), (self._pairs,)


_NO_ANNOTATIONS = _Annotations({})


def _frozen(pairs: Mapping[str, str]) -> Mapping[str, str]:
    if isinstance(pairs, _Annotations):
        return pairs
    return _Annotations(pairs) if pairs else _NO_ANNOTATIONS


@dataclass(frozen=True, slots=True)
class Device:
    """A device that containers can request by name.

    Attributes:
        name: Unique within the spec.
        container_edits: At least one edit.
        annotations: Information for people. Runtimes do not inject it.
    """

    name: str
    container_edits: ContainerEdits = _NO_EDITS
    annotations: Mapping[str, str] = _NO_ANNOTATIONS

    def __post_init__(self) -> None:
        object.__setattr__(self, "annotations", _frozen(self.annotations))


@dataclass(frozen=True, slots=True)
class Spec:
    """One CDI document: devices of one kind.

    Attributes:
        kind: `vendor/class`.
        devices: At least one device.
        container_edits: Applied once to each container that requests any of the devices.
        annotations: Information for people. Runtimes do not inject it.
        version: The `cdiVersion`. `version.minimum_required` computes the lowest possible one.
    """

    kind: str
    devices: tuple[Device, ...]
    container_edits: ContainerEdits = _NO_EDITS
    annotations: Mapping[str, str] = _NO_ANNOTATIONS
    version: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "annotations", _frozen(self.annotations))
