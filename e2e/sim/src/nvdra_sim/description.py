# SPDX-License-Identifier: Apache-2.0
"""The complete description of one simulated node, without defaults.

Enumerations are the numbers of NVML (docs/reference/nvml-simulator.md §5), so that the state file,
the trees and the library need no second table. Only `configuration.node_config` creates
descriptions.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from nvdra_sim.frozen import Frozen
from nvdra_sim.kernel_description import Iommu, Majors, VfioModules

NVIDIA_MAJOR = 195
CONTROL_MINOR = 255
MODESET_MINOR = 254

Companion = Literal["audio", "usb", "ucsi"]
NodeKind = Literal["real", "table", "openable"]
Layout = Literal["debian", "rhel", "cos", "talos"]


class DeviceNumber(Frozen):
    """The major and minor number of a character device."""

    major: int
    minor: int


class BusAddress(Frozen):
    """A PCI address. The function is 0, as for all NVIDIA GPUs."""

    domain: int
    bus: int
    device: int

    @classmethod
    def parse(cls, text: str) -> BusAddress:
        """Parses `dddd:bb:dd.0`, hexadecimal. Raises ValueError for anything else."""
        head, _, function = text.partition(".")
        fields = head.split(":")
        if len(fields) != 3 or function != "0":
            raise ValueError(f"{text!r} is not a PCI address like 0000:3b:00.0")
        domain, bus, device = (int(field, 16) for field in fields)
        if not (0 <= domain <= 0xFFFF_FFFF and 0 <= bus <= 0xFF and 0 <= device <= 0x1F):
            raise ValueError(f"{text!r} is outside the range of PCI addresses")
        return cls(domain=domain, bus=bus, device=device)

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.0"

    @property
    def sort_key(self) -> tuple[int, int, int]:
        """The key for bus order, which is the index order of NVML."""
        return self.domain, self.bus, self.device


class MigProfile(Frozen):
    """A GPU instance profile (nvml-simulator.md §7.1). Sizes and starts are in memory slices."""

    name: str  # "3g.40gb", without NVML's "MIG " in front
    enum: int  # NVML_GPU_INSTANCE_PROFILE_*
    id: int
    slices: int  # compute slices
    max_instances: int
    memory_mib: int
    sms: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    placement_size: int
    placement_starts: tuple[int, ...]
    capabilities: int  # bits of profile info v3: 1 P2P, 2 graphics


class MigTable(Frozen):
    """The MIG profiles of a GPU model."""

    compute_slices: int
    memory_slices: int
    profiles: tuple[MigProfile, ...]

    def profile(self, name: str) -> MigProfile:
        """The profile with this name. Raises KeyError."""
        for profile in self.profiles:
            if profile.name == name:
                return profile
        raise KeyError(name)


class ComputeInstance(Frozen):
    """A compute instance, which is a MIG device. Start and size are in compute slices."""

    id: int
    profile_id: int
    start: int
    size: int
    uuid: UUID  # "MIG-<uuid>" as NVML writes it
    incarnation: int  # the how many-th instance made on this board


class MigInstance(Frozen):
    """An initial GPU instance. Start and size are in memory slices."""

    id: int
    profile: str
    start: int
    size: int
    incarnation: int  # the how many-th instance made on this board
    compute: tuple[ComputeInstance, ...]


class Mig(Frozen):
    """The MIG capabilities of a GPU, and its initial MIG mode and instances."""

    table: MigTable
    enabled: bool = False
    instances: tuple[MigInstance, ...] = ()


class Fabric(Frozen):
    """The NVLink fabric state of a GPU (nvml-simulator.md §9)."""

    state: int  # 0 not supported, 1 not started, 2 in progress, 3 completed
    status: int  # an NVML return code, meaningful when completed
    cluster_uuid: UUID
    clique_id: int
    health_mask: int
    health_summary: int


class Platform(Frozen):
    """The location of a GPU in its rack (`nvmlDeviceGetPlatformInfo`)."""

    ib_guid: UUID  # 16 bytes, in order
    rack_guid: UUID
    chassis_serial: str
    slot: int
    tray: int
    host: int
    peer_type: int  # 0 direct, 1 through a switch


class Gpu(Frozen):
    """A GPU: the columns of its model, its place in the node, and its initial state."""

    index: int  # in bus order, over all boards
    model: str  # the model's key, "h100"
    name: str
    uuid: str  # "GPU-…"
    serial: str | None
    minor: int
    node: DeviceNumber  # of /dev/nvidia<minor>
    module_id: int

    bus: BusAddress
    pcie_root: str  # "pci0000:52"
    numa_node: int  # of the PCI function; -1 unknown
    memory_numa_node: int | None  # of the GPU's memory, on coherent systems
    bound_driver: str | None  # "nvidia", "vfio-pci" or none
    excluded: bool  # by the module's parameter NVreg_ExcludedGpus
    initialisation_ms: int  # before the first client is answered
    iommu_group: int | None
    bridges: tuple[str, ...]  # addresses of the PCIe ports above it, from the root port down
    companions: tuple[Companion, ...]  # further functions of the board, with their native drivers

    architecture: int
    architecture_name: str
    brand: int
    compute_capability: tuple[int, int]
    sms: int
    cores_per_sm: int
    memory_bus_bits: int
    memory_mib: int
    reserved_mib: int
    bar1_mib: int
    memory_nvml: bool  # false: memory queries answer NOT_SUPPORTED
    pci_device: int
    pci_subsystem: int
    pcie_generation: int
    power_min_w: int
    power_max_w: int
    idle_power_w: int
    idle_temperature_c: int
    clock_graphics_mhz: int
    clock_memory_mhz: int
    clock_video_mhz: int
    ecc: bool
    vbios: str
    board_part_number: str
    addressing: int | None  # 0 none, 1 HMM, 2 ATS; None: NOT_SUPPORTED
    virtualization: int
    c2c: bool | None  # None: the board has no C2C, so NOT_SUPPORTED
    gsp: bool
    nvlinks: int
    supported_events: int  # bit mask

    mig: Mig | None
    fabric: Fabric
    platform: Platform | None

    @property
    def bus_id(self) -> str:
        """The PCI address as in sysfs: `0000:3b:00.0`."""
        return str(self.bus)

    @property
    def cores(self) -> int:
        """The number of CUDA cores."""
        return self.sms * self.cores_per_sm


class Driver(Frozen):
    """The installed driver.

    Attributes:
        uvm_loaded: Whether the module nvidia-uvm is loaded and has its device nodes. Neither NVML
            nor the other modules load it: that takes `nvidia-modprobe -c0 -u`, a udev rule, or the
            first program that uses CUDA outside of containers.
    """

    version: str
    cuda_version: int  # 1000 * major + 10 * minor, e.g. 13000
    branch: str
    module_loaded: bool
    uvm_loaded: bool
    api_level: int  # symbols younger than this branch answer FUNCTION_NOT_FOUND

    @property
    def nvml_version(self) -> str:
        """`<CUDA major>.<driver version>`, for example `13.580.95.05`."""
        return f"{self.cuda_version // 1000}.{self.version}"


class Imex(Frozen):
    """IMEX: parameters of the kernel module, device nodes, programs.

    Public sources differ about the last ones, or say nothing; see docs/reference/imex.md, "What is
    known of nvidia-imex".

    Attributes:
        retry_first_ms: The time from a failed connection to the next attempt; doubles.
        retry_ceiling_ms: The longest such time.
        name_retry_ms: The longest time between attempts at a name that does not resolve; the first
            is half a second.
        mismatch_is_permanent: Nodes whose version or node map does not match are blocked until this
            nvidia-imex ends; otherwise, until the other one is another process.
        ctl_says_unavailable: `nvidia-imex-ctl -q` says UNAVAILABLE where no daemon answers;
            otherwise, it fails.
        ctl_patience_ms: How long nvidia-imex-ctl waits for a daemon that took its question; 0 means
            without limit.
    """

    channel_count: int
    create_channel0: bool
    channel_nodes: int  # channels that have a device node
    installed: bool  # false: the driver root has no nvidia-imex
    needs_capability: bool  # nvidia-imex does not start without the node of fabric-imex-mgmt
    signal_window_ms: int  # a SIGUSR1 that comes so soon after another is ignored
    retry_first_ms: int
    retry_ceiling_ms: int
    name_retry_ms: int
    mismatch_is_permanent: bool
    ctl_says_unavailable: bool
    ctl_patience_ms: int


class MigBehaviour(Frozen):
    """MIG behaviour that differs between versions of the real library, or between public sources.

    Attributes:
        switch_blocked_by_clients: On which GPUs other processes that have the GPU open keep it in
            its MIG mode: only where the switch is a reset, or everywhere.
        busy_switch: Where `nvmlDeviceSetMigMode` says IN_USE. As a return code, it also leaves the
            pending mode as it is.

    Source: docs/reference/nvml-simulator.md §§7, 12.
    """

    uuid: Literal["stable", "fresh"]
    gi_id_order: Literal["normal", "reversed"]
    sparse_index: bool
    reuse_handles: bool
    max_count_when_off: Literal["zero", "capacity"]
    handle_when_off: Literal["not_found", "not_supported"]
    renumber_minor_on_toggle: bool
    ampere_reset: Literal["required", "auto"]
    switch_blocked_by_clients: Literal["ampere", "all"]
    busy_switch: Literal["activation_status", "return_code"]
    ci_extra: tuple[Literal["rev1", "nvl"], ...]


class FabricBehaviour(Frozen):
    """The results of fabric queries, and how long the fabric takes to come up."""

    call: Literal["success", "not_supported"]
    bring_up_ms: int
    follow_fm: bool


class Fault(Frozen):
    """A fault rule. `gpu` None matches all GPUs. Return codes are numbers of NVML.

    Source: docs/reference/nvml-simulator.md §11.
    """

    function: str  # a glob
    gpu: int | None
    result: int | None  # None: the call's own result
    activation_status: int | None
    times: int | None  # None: forever
    after_calls: int
    probability: float
    delay_ms: int  # -1: until the rule is removed
    do_work: bool
    abort: bool


class Render(Frozen):
    """The layout of the installed files."""

    layout: Layout
    ldcache: bool
    nodes: NodeKind


class NodeDescription(Frozen):
    """One complete node. GPUs are in bus order.

    Attributes:
        persistence_blocks_reset: Whether a GPU in persistence mode cannot be reset. Otherwise
            nvidia-smi has nvidia-persistenced leave it for the while. Public reports have both; see
            docs/decisions/simulator.md.
        unbind_ends_drain: Whether a drained GPU that its driver has left and takes again is not
            drained any more. The driver's source says so; it was not tried.
    """

    name: str
    profile: str | None
    driver: Driver
    boot_id: str
    boot_id_is_host: bool
    seed: int
    init_without_gpus: Literal["success", "driver_not_loaded", "gpu_not_found"]
    privilege: Literal["euid", "none"]
    visibility: Literal["all", "devnodes", "auto"]
    privilege_queries: bool
    persistence_blocks_reset: bool
    unbind_ends_drain: bool
    iommu: Iommu
    vfio: VfioModules
    imex: Imex
    majors: Majors
    control_node: DeviceNumber  # of /dev/nvidiactl
    nvswitches: int  # with a driver of their own, up to NVLink 4
    nvlink_managers: int  # management functions of NVLink 5 switches
    gpus: tuple[Gpu, ...]
    fabric: FabricBehaviour
    mig: MigBehaviour
    event_early_timeout_probability: float
    gpu_lost_wait: Literal["error", "error_once", "xid_only"]
    latency_ms: dict[str, int]  # class → delay; classes of nvml-simulator.md §11
    faults: tuple[Fault, ...]
    render: Render
