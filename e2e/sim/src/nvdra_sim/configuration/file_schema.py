# SPDX-License-Identifier: Apache-2.0
"""The schema of configuration files: node, cluster and profile.

This module contains fields and their defaults. `node_config` derives the rest. Unknown keys are
errors.

Source: docs/reference/nvml-simulator.md §12.
"""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from nvdra_sim.description import NVIDIA_MAJOR, Companion, Layout, NodeKind

API_VERSION = "nvdra.sim/v1"
VfioModule = Literal[
    "vfio", "vfio_iommu_type1", "vfio_pci_core", "vfio_pci", "nvgrace_gpu_vfio_pci"
]
DYNAMIC_MAJORS = range(511, 383, -1)  # CHRDEV_MAJOR_DYN_EXT_START to _END of the kernel
LATENCY_CLASSES = ("handle_by_uuid", "gi_create", "gi_destroy", "mig_mode", "init", "other")


class FileModel(BaseModel):
    """A mapping in a file. Keys may contain dashes, as in the names of NVIDIA."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Metadata(FileModel):
    name: str = Field(min_length=1)


class DriverSection(FileModel):
    version: str = Field("580.95.05", pattern=r"^\d+\.\d+(\.\d+)?$")
    cuda: str | None = Field(None, pattern=r"^\d+\.\d+$")
    branch: str | None = None
    module_loaded: bool = True
    uvm_loaded: bool = True
    api_level: int | None = None


class IommuSection(FileModel):
    enabled: bool = True
    iommufd: bool = True
    cdev: bool | None = None
    acs: bool = True


class VfioSection(FileModel):
    """`loaded` None: where a GPU is bound to a driver of vfio from the start."""

    loaded: bool | None = None
    missing: tuple[VfioModule, ...] = ()
    d3cold: bool = False


class ImexSection(FileModel):
    channel_count: int = Field(2048, ge=0)
    create_channel0: bool = False
    channel_nodes: int | None = Field(None, ge=0)
    installed: bool = True
    needs_capability: bool = False
    signal_window_ms: int = Field(5000, ge=0)
    retry_first_ms: int = Field(500, ge=1)
    retry_ceiling_ms: int = Field(60_000, ge=1)
    name_retry_ms: int = Field(3000, ge=1)
    mismatch_is_permanent: bool = True
    ctl_says_unavailable: bool = False
    ctl_patience_ms: int = Field(5000, ge=0)


def _free_major(taken: dict[str, Any]) -> int:
    """The highest dynamic number that no driver before has, as the kernel gives them."""
    return next(number for number in DYNAMIC_MAJORS if number not in taken.values())


class MajorsSection(FileModel):
    nvidia: int = Field(NVIDIA_MAJOR, ge=1, le=4095)
    drm: int = Field(226, ge=1, le=4095)
    nvidia_uvm: int = Field(507, alias="nvidia-uvm", ge=1, le=4095)
    nvidia_caps: int = Field(505, alias="nvidia-caps", ge=1, le=4095)
    nvidia_caps_imex_channels: int = Field(506, alias="nvidia-caps-imex-channels", ge=1, le=4095)
    vfio: int = Field(default_factory=_free_major, ge=1, le=4095)
    vfio_devices: int = Field(default_factory=_free_major, alias="vfio-devices", ge=1, le=4095)


class NodeSection(FileModel):
    seed: int = 0
    init_without_gpus: Literal["success", "driver_not_loaded", "gpu_not_found"] = "success"
    privilege: Literal["euid", "none"] = "euid"
    visibility: Literal["all", "devnodes", "auto"] = "auto"
    privilege_queries: bool = False
    persistence_blocks_reset: bool = True
    unbind_ends_drain: bool = True
    boot_id: Literal["host"] | UUID = "host"
    iommu: IommuSection = IommuSection()
    vfio: VfioSection = VfioSection()
    imex: ImexSection = ImexSection()
    majors: MajorsSection = MajorsSection()


class MigInstanceEntry(FileModel):
    profile: str
    start: int = Field(ge=0)
    compute: tuple[str, ...] = ()


class MigEntry(FileModel):
    mode: bool = False
    instances: tuple[MigInstanceEntry, ...] = ()


class FabricEntry(FileModel):
    """Fabric settings. A missing one is taken from the next level (GPU, node, profile)."""

    domain: Literal["none", "nvl"] | None = None
    state: Literal["not_supported", "not_started", "in_progress", "completed"] | None = None
    status: int | None = None
    cluster_uuid: UUID | None = None
    clique: int | None = Field(None, ge=0, le=0xFFFF_FFFF)
    health_mask: int | None = Field(None, ge=0, le=0xFFFF_FFFF)
    health_summary: int | None = Field(None, ge=0, le=3)


class FabricSection(FabricEntry):
    call: Literal["success", "not_supported"] = "success"
    bring_up_ms: int = Field(0, ge=0)
    follow_fm: bool = False


class MemoryEntry(FileModel):
    nvml: Literal["supported", "unsupported"] = "supported"


class PlatformEntry(FileModel):
    chassis_serial: str = Field(max_length=16)
    slot: int = Field(ge=0, le=255)
    tray: int = Field(ge=0, le=255)
    host: int = Field(ge=0, le=255)
    peer_type: Literal["direct", "switch"]


class GpuModel(FileModel):
    """The columns of one GPU model (nvml-simulator.md §13.2)."""

    name: str = Field(min_length=1, max_length=95)
    memory_mib: PositiveInt
    reserved_mib: int = Field(ge=0)
    bar1_mib: PositiveInt
    pci_device: int = Field(ge=0, le=0xFFFF)
    pci_subsystem: int = Field(ge=0, le=0xFFFF)
    architecture: Literal[
        "kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"
    ]
    brand: int = Field(14, ge=0, le=16)
    compute_capability: str = Field(pattern=r"^\d+\.\d$")
    sms: PositiveInt
    cores_per_sm: PositiveInt
    memory_bus_bits: PositiveInt
    power_min_w: PositiveInt
    power_max_w: PositiveInt
    clock_graphics_mhz: PositiveInt
    clock_memory_mhz: PositiveInt
    clock_video_mhz: PositiveInt | None = None
    addressing: Literal["none", "hmm", "ats", "unsupported"]
    virtualization: int = Field(0, ge=0, le=4)
    ecc: bool
    vbios: str = Field(max_length=31)
    board_part_number: str = Field(max_length=79)
    c2c: Literal["absent", "disabled", "enabled"]
    gsp: bool = True
    nvlinks: int = Field(ge=0, le=18)
    pcie_generation: int = Field(ge=1, le=7)
    idle_power_w: PositiveInt
    idle_temperature_c: PositiveInt
    supported_events: int | None = Field(None, ge=0)
    mig_table: str | None


class GpuEntry(FileModel):
    """One GPU of a node. It may also have any column of its model; see `columns`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    model: str | None = None
    uuid: str | None = Field(
        None, pattern=r"^GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
    )
    bus_id: str | None = None
    pcie_root: str | None = Field(None, pattern=r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")
    minor: int | None = Field(None, ge=0, le=31)
    module_id: int | None = Field(None, ge=0)
    numa_node: int | None = Field(None, ge=-1)
    memory_numa_node: int | None = Field(None, ge=0)
    serial: str | None = Field(None, max_length=29)
    bridges: tuple[str, ...] | None = None
    companions: tuple[Companion, ...] = ()
    iommu_group: int | Literal["none"] | None = None
    bound_driver: Literal["nvidia", "vfio-pci", "nvgrace_gpu_vfio_pci", "none"] | None = None
    excluded: bool = False
    initialisation_ms: int = Field(0, ge=0)
    mig: MigEntry | None = None
    fabric: FabricEntry | None = None
    memory: MemoryEntry | None = None
    platform: PlatformEntry | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The remaining keys, which replace columns of the model."""
        return dict(self.model_extra or {})


class GpuOverride(GpuEntry):
    index: int = Field(ge=0)


class PlatformOverride(FileModel):
    chassis_serial: str | None = Field(None, max_length=16)
    slot: int | None = Field(None, ge=0, le=255)
    tray: int | None = Field(None, ge=0, le=255)


class Overrides(FileModel):
    platform: PlatformOverride | None = None
    gpu_count: int | None = Field(None, ge=0)
    uuid_prefix: str | None = None
    gpus: tuple[GpuOverride, ...] = ()


class ProfileFile(FileModel):
    """A node profile (nvml-simulator.md §13.1), or one that only changes the minors of another."""

    extends: str | None = None
    minors: tuple[int, ...] | None = None
    gpus: tuple[GpuEntry, ...] = ()
    nvswitches: int = Field(0, ge=0)
    nvlink_managers: int = Field(0, ge=0, le=8)
    fabric: FabricEntry = FabricEntry()
    platform: PlatformEntry | None = None


class MigSection(FileModel):
    uuid: Literal["stable", "fresh"] = "stable"
    gi_id_order: Literal["normal", "reversed"] = "normal"
    sparse_index: bool = False
    reuse_handles: bool = False
    max_count_when_off: Literal["zero", "capacity"] = "zero"
    handle_when_off: Literal["not_found", "not_supported"] = "not_found"
    renumber_minor_on_toggle: bool = False
    ampere_reset: Literal["required", "auto"] = "required"
    switch_blocked_by_clients: Literal["ampere", "all"] = "ampere"
    busy_switch: Literal["activation_status", "return_code"] = "activation_status"
    ci_extra: tuple[Literal["rev1", "nvl"], ...] = ()


class EventsSection(FileModel):
    early_timeout_probability: float = Field(0, ge=0, le=1)


class GpuLostSection(FileModel):
    wait: Literal["error", "error_once", "xid_only"] = "error"


class LatencySection(FileModel):
    """A preset, and milliseconds for single classes, which override the preset."""

    preset: Literal["instant", "realistic"] = "instant"
    handle_by_uuid: int | None = Field(None, ge=0)
    gi_create: int | None = Field(None, ge=0)
    gi_destroy: int | None = Field(None, ge=0)
    mig_mode: int | None = Field(None, ge=0)
    init: int | None = Field(None, ge=0)
    other: int | None = Field(None, ge=0)


class FaultMatch(FileModel):
    function: str = "nvml*"
    gpu: int | str = "*"


class FaultEntry(FileModel):
    match: FaultMatch
    result: str | int | None = None
    activation_status: str | int | None = None
    times: int | None = Field(None, ge=1)
    after_calls: int = Field(0, ge=0)
    probability: float = Field(1.0, ge=0, le=1)
    delay_ms: int = Field(0, ge=-1)
    do_work: bool = False
    abort: bool = False


class RenderSection(FileModel):
    layout: Layout = "debian"
    ldcache: bool = False
    nodes: NodeKind = "real"


class NodeFile(FileModel):
    api_version: Literal["nvdra.sim/v1"] = Field(alias="apiVersion")
    kind: Literal["Node"]
    metadata: Metadata
    driver: DriverSection = DriverSection()
    node: NodeSection = NodeSection()
    profile: str | None = None
    gpus: tuple[GpuEntry, ...] | None = None
    overrides: Overrides = Overrides()
    fabric: FabricSection = FabricSection()
    mig: MigSection = MigSection()
    events: EventsSection = EventsSection()
    gpu_lost: GpuLostSection = GpuLostSection()
    latency: LatencySection = LatencySection()
    faults: tuple[FaultEntry, ...] = ()
    render: RenderSection = RenderSection()


class RackEntry(FileModel):
    name: str
    cluster_uuid: UUID | None = None


class ClusterNodeEntry(FileModel):
    """One node of a cluster. Its overrides are added to those of the cluster's `defaults`."""

    name: str = Field(min_length=1)
    profile: str | None = None
    rack: str | None = None
    clique: int | None = Field(None, ge=0, le=0xFFFF_FFFF)
    overrides: dict[str, Any] = Field(default_factory=dict)


class ClusterFile(FileModel):
    """The nodes of a cluster. All nodes of a rack have the same fabric cluster UUID."""

    api_version: Literal["nvdra.sim/v1"] = Field(alias="apiVersion")
    kind: Literal["Cluster"]
    metadata: Metadata
    defaults: dict[str, Any] = Field(default_factory=dict)
    racks: tuple[RackEntry, ...] = ()
    nodes: tuple[ClusterNodeEntry, ...] = Field(min_length=1)
