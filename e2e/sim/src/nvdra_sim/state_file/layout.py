# SPDX-License-Identifier: Apache-2.0
"""The layout of the state file (docs/reference/nvml-simulator.md §10.1).

Python maps these structures with ctypes. The C programs get the same structures as `layout.h`,
which is generated from this module when they are compiled, with an assertion for every size and
offset.

Text fields are NUL-terminated UTF-8. Memory is in MiB, power in milliwatts, clocks in MHz.
"""

from __future__ import annotations

import hashlib
from ctypes import (
    Array,
    Structure,
    c_char,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
    c_uint64,
    sizeof,
)
from typing import Any

MAGIC = b"NVDRASIM"
BYTE_ORDER = 0x01020304
FILE_SIZE = 4 * 1024 * 1024

MAX_GPUS = 16
MAX_GI_PROFILES = 18
MAX_PLACEMENTS = 12
MAX_GPU_INSTANCES = 16
MAX_COMPUTE_INSTANCES = 8
MAX_PROCESSES = 64
MAX_RULES = 32
MAX_FUNCTIONS = 512
MAX_EVENTS = 1024
MAX_IMEX_NODES = 256
MAX_PROC_ROOT = 1024
MAX_OTHER_ROOT = 512
MAX_PCI_FUNCTIONS = 128
MAX_PCI_IDS = 16

CLIENT_LOCKS = FILE_SIZE  # a byte behind the file per GPU: locked by processes that use it
INITIALISATION_LOCKS = CLIENT_LOCKS + MAX_GPUS  # likewise: locked by whoever initialises it
SESSION_LOCK = INITIALISATION_LOCKS + MAX_GPUS  # locked by processes with an NVML session
CONTEXT_LOCKS = SESSION_LOCK + 1  # a byte per GPU: locked by processes that compute on it
CONTEXT_CREATION_LOCKS = CONTEXT_LOCKS + MAX_GPUS  # likewise: locked by whoever begins to
INSTANCE_CONTEXT_LOCKS = CONTEXT_CREATION_LOCKS + MAX_GPUS  # a byte per possible compute instance
SYSFS_SERVER_LOCK = (  # locked while a server answers for the PCI bus
    INSTANCE_CONTEXT_LOCKS + MAX_GPUS * MAX_GPU_INSTANCES * MAX_COMPUTE_INSTANCES
)
SYSTEM_EVENT_UNBIND = 1 << 32  # types of the event ring that no set of a GPU can ask for
SYSTEM_EVENT_BIND = 1 << 33
BROKEN_SOON, BROKEN_NOW = 1, 2  # of a GPU: it does not start after its next bind; it does not start
OUT_OF_SLOT, OFF_BUS = 1, 2  # of `unplugged`
NOT_AVAILABLE = 0xFFFFFFFF  # of an unsigned column: the query returns NOT_SUPPORTED
ANY_GPU = -1  # of a fault rule
NO_RESULT = -1  # of a fault rule: the call's own result
ALWAYS = 1_000_000  # chance of a fault rule, in millionths
NO_INSTANCE = 0xFFFFFFFF  # of an event or a process: it concerns the whole GPU
UNTIL_REMOVED = -1  # delay of a fault rule

VISIBILITY = {"all": 0, "devnodes": 1, "auto": 2}
PRIVILEGE = {"none": 0, "euid": 1}
IMEX_STATUSES = (
    "INITIALIZING", "STARTING_AUTH_SERVER", "WAITING_FOR_PEERS", "WAITING_FOR_RECOVERY", "INIT_GPU",
    "READY", "SHUTTING_DOWN", "UNAVAILABLE",
)  # fmt: skip
"""What `nvidia-imex-ctl -q` says, in the order of imex.h."""
LOST_WAIT = {"error": 0, "error_once": 1, "xid_only": 2}
REMAPPING = {"none": 0, "pending": 1, "failed": 2}
PROCESS = {"compute": 0, "graphics": 1, "mps": 2}


class Header(Structure):
    """Bytes 0 to 4095. The lowest bit of `generation` is the index of the published state.

    `event_head` is the sequence number of the newest event. Events up to `event_floor` are of an
    earlier boot. `wake` is a futex that every change and every event increments. `proc_root` is the
    simulated /proc, in which the capability files of MIG instances come and go; `dev_root` has the
    device nodes; `sys_root` the plain files of sysfs, and `sys_mount` those that a server answers
    for. Each of them may be empty.
    """

    _fields_ = (
        ("magic", c_char * 8),
        ("byte_order", c_uint32),
        ("reserved", c_uint32),
        ("size", c_uint64),
        ("layout", c_uint64),
        ("generation", c_uint64),
        ("event_head", c_uint64),
        ("event_floor", c_uint64),
        ("events_dropped", c_uint64),
        ("json_length", c_uint64),
        ("node_id", c_char * 64),
        ("wake", c_uint32),
        ("padding", c_uint32),
        ("proc_root", c_char * MAX_PROC_ROOT),
        ("dev_root", c_char * MAX_OTHER_ROOT),
        ("sys_root", c_char * MAX_OTHER_ROOT),
        ("sys_mount", c_char * MAX_OTHER_ROOT),
    )


class MigProfile(Structure):
    """A GPU instance profile (§7.1)."""

    _fields_ = (
        ("name", c_char * 96),
        ("enumerator", c_uint32),
        ("id", c_uint32),
        ("slices", c_uint32),
        ("max_instances", c_uint32),
        ("memory_mib", c_uint64),
        ("sms", c_uint32),
        ("copy_engines", c_uint32),
        ("decoders", c_uint32),
        ("encoders", c_uint32),
        ("jpeg_engines", c_uint32),
        ("ofa_engines", c_uint32),
        ("capabilities", c_uint32),
        ("placement_size", c_uint32),
        ("placement_count", c_uint32),
        ("placement_starts", c_uint32 * MAX_PLACEMENTS),
        ("reserved", c_uint32),
    )


class GpuSpec(Structure):
    """The constant properties of a GPU."""

    _fields_ = (
        ("uuid", c_char * 80),
        ("name", c_char * 96),
        ("serial", c_char * 32),
        ("vbios", c_char * 32),
        ("board_part_number", c_char * 80),
        ("pcie_root", c_char * 32),
        ("excluded", c_uint32),
        ("node_major", c_uint32),
        ("node_minor", c_uint32),
        ("module_id", c_uint32),
        ("pci_domain", c_uint32),
        ("pci_bus", c_uint32),
        ("pci_device", c_uint32),
        ("pci_device_id", c_uint32),
        ("pci_subsystem_id", c_uint32),
        ("pcie_generation", c_uint32),
        ("numa_node", c_int32),
        ("memory_numa_node", c_uint32),
        ("architecture", c_uint32),
        ("brand", c_uint32),
        ("capability_major", c_uint32),
        ("capability_minor", c_uint32),
        ("cores", c_uint32),
        ("memory_bus_bits", c_uint32),
        ("memory_in_nvml", c_uint32),
        ("memory_mib", c_uint64),
        ("reserved_mib", c_uint64),
        ("bar1_mib", c_uint64),
        ("power_min_mw", c_uint32),
        ("power_max_mw", c_uint32),
        ("power_idle_mw", c_uint32),
        ("temperature_c", c_uint32),
        ("clock_graphics_mhz", c_uint32),
        ("clock_memory_mhz", c_uint32),
        ("clock_video_mhz", c_uint32),
        ("ecc", c_uint32),
        ("addressing", c_uint32),
        ("virtualization", c_uint32),
        ("c2c", c_uint32),
        ("gsp", c_uint32),
        ("nvlinks", c_uint32),
        ("supported_events", c_uint64),
        ("has_platform", c_uint32),
        ("platform_peer_type", c_uint32),
        ("platform_ib_guid", c_uint8 * 16),
        ("platform_rack_guid", c_uint8 * 16),
        ("platform_chassis_serial", c_uint8 * 16),
        ("platform_slot", c_uint32),
        ("platform_tray", c_uint32),
        ("platform_host", c_uint32),
        ("mig_profile_count", c_uint32),
        ("mig_compute_slices", c_uint32),
        ("mig_memory_slices", c_uint32),
        ("mig_mode_outlives_boots", c_uint32),
        ("mig_profiles", MigProfile * MAX_GI_PROFILES),
    )


class Description(Structure):
    """The constant properties of the node."""

    _fields_ = (
        ("driver_version", c_char * 80),
        ("driver_branch", c_char * 80),
        ("nvml_version", c_char * 80),
        ("cuda_version", c_uint32),
        ("api_level", c_uint32),
        ("init_without_gpus", c_uint32),
        ("privilege", c_uint32),
        ("visibility", c_uint32),
        ("control_major", c_uint32),
        ("control_minor", c_uint32),
        ("caps_major", c_uint32),
        ("stand_in_nodes", c_uint32),
        ("fabric_supported", c_uint32),
        ("mig_capacity_when_off", c_uint32),
        ("mig_not_supported_when_off", c_uint32),
        ("mig_sparse_index", c_uint32),
        ("mig_ampere_resets_itself", c_uint32),
        ("mig_offers_rev1", c_uint32),
        ("mig_offers_nvl", c_uint32),
        ("mig_fresh_uuids", c_uint32),
        ("mig_reversed_halves", c_uint32),
        ("mig_reuses_handles", c_uint32),
        ("mig_clients_block_switch", c_uint32),
        ("mig_busy_fails_call", c_uint32),
        ("persistence_blocks_reset", c_uint32),
        ("gpu_lost_wait", c_uint32),
        ("seed", c_uint32),
        ("cpus_per_numa_node", c_uint32),
        ("gpu_count", c_uint32),
        ("privileged_queries", c_uint32),
        ("fabric_bring_up_ms", c_uint32),
        ("imex_signal_window_ms", c_uint32),
        ("imex_needs_capability", c_uint32),
        ("imex_retry_first_ms", c_uint32),
        ("imex_retry_ceiling_ms", c_uint32),
        ("imex_name_retry_ms", c_uint32),
        ("imex_mismatch_is_permanent", c_uint32),
        ("imex_ctl_says_unavailable", c_uint32),
        ("imex_ctl_patience_ms", c_uint32),
        ("latency_ms", c_uint32 * MAX_FUNCTIONS),
        ("gpus", GpuSpec * MAX_GPUS),
    )


class ComputeInstance(Structure):
    """A compute instance. `in_use` 0 marks a free record. Start and size are in compute slices.

    `incarnation` tells it from others that had or will have its place.
    """

    _fields_ = (
        ("in_use", c_uint32),
        ("profile", c_uint32),
        ("start", c_uint32),
        ("size", c_uint32),
        ("incarnation", c_uint64),
        ("uuid", c_uint8 * 16),
    )


class GpuInstance(Structure):
    """A GPU instance with its compute instances. Their ids are their indices.

    `profile` is the profile's id; `start` and `size` count memory slices.
    """

    _fields_ = (
        ("in_use", c_uint32),
        ("profile", c_uint32),
        ("start", c_uint32),
        ("size", c_uint32),
        ("incarnation", c_uint64),
        ("compute", ComputeInstance * MAX_COMPUTE_INSTANCES),
    )


class Process(Structure):
    """A process that uses a GPU. `pid` 0 marks a free record. Instances may be NO_INSTANCE."""

    _fields_ = (
        ("pid", c_uint32),
        ("kind", c_uint32),
        ("memory_mib", c_uint64),
        ("gpu_instance", c_uint32),
        ("compute_instance", c_uint32),
    )


class GpuState(Structure):
    """The changing state of a GPU, small enough that every call can copy it.

    Pairs of ECC counters: corrected errors, uncorrected ones. `fabric_since_ns` is when the fabric
    began to come up, in nanoseconds since 1970; 0: it is as the other fields say. REMAPPING has the
    values of `row_remapping`.

    `unplugged`: OUT_OF_SLOT, where no rescan finds it, or OFF_BUS.
    `removing`: the driver's remove waits for its users. `drained`: it takes no new clients.
    `broken`: BROKEN_SOON or BROKEN_NOW. `kernel_clients` use it without a descriptor.
    """

    _fields_ = (
        ("minor", c_uint32),
        ("lost", c_uint32),
        ("bound_to_nvidia", c_uint32),
        ("persistence", c_uint32),
        ("compute_mode", c_uint32),
        ("time_slice", c_uint32),
        ("mig_mode", c_uint32),
        ("mig_pending", c_uint32),
        ("incarnation", c_uint64),
        ("instances_made", c_uint64),
        ("ecc_volatile", c_uint64 * 2),
        ("ecc_aggregate", c_uint64 * 2),
        ("fabric_since_ns", c_uint64),
        ("fabric_uuid", c_uint8 * 16),
        ("fabric_state", c_uint32),
        ("fabric_status", c_uint32),
        ("fabric_clique", c_uint32),
        ("fabric_health_mask", c_uint32),
        ("fabric_health_summary", c_uint32),
        ("driver", c_char * 32),
        ("unplugged", c_uint32),
        ("initialisation_ms", c_uint32),
        ("recovery_action", c_uint32),
        ("row_remapping", c_uint32),
        ("removing", c_uint32),
        ("drained", c_uint32),
        ("broken", c_uint32),
        ("kernel_clients", c_uint32),
    )


class GpuTables(Structure):
    """The larger tables of a GPU, which only few calls read."""

    _fields_ = (
        ("instances", GpuInstance * MAX_GPU_INSTANCES),
        ("processes", Process * MAX_PROCESSES),
    )


class Rule(Structure):
    """A fault rule (§11). `id` 0 marks a free slot. Its hits are in `RuleHits`."""

    _fields_ = (
        ("id", c_uint32),
        ("gpu", c_int32),
        ("result", c_int32),
        ("times", c_uint32),
        ("delay_ms", c_int32),
        ("after_calls", c_uint32),
        ("chance", c_uint32),
        ("do_work", c_uint32),
        ("abort", c_uint32),
        ("activation_status", c_int32),
        ("function", c_char * 72),
    )


class Imex(Structure):
    """The disturbances of `nvidia-imex` (§16.1). All zero means none.

    Attributes:
        crashes: Each increment kills the running process.
        nodes_hang: It gives no answer to `nvidia-imex-ctl -N`.
        status: The place of the word in `IMEX_STATUSES` that it reports, plus one; 0: its own.
        refused: By index in the node list: 1 marks a peer that the daemon does not connect to.
        version: The version that the daemon sends; empty for its own.
    """

    _fields_ = (
        ("slow_start_ms", c_uint32),
        ("crash_after_ms", c_uint32),
        ("never_ready", c_uint32),
        ("hang", c_uint32),
        ("dns_stale", c_uint32),
        ("crashes", c_uint32),
        ("nodes_hang", c_uint32),
        ("status", c_uint32),
        ("version", c_char * 32),
        ("refused", c_uint8 * MAX_IMEX_NODES),
    )


class PciFunction(Structure):
    """A function of the PCI bus, in the order of addresses; see `pci.bus.FunctionState`.

    `vfio_number` may be NOT_AVAILABLE. The fields from `fault_driver` to `link_width` are
    `pci.bus.Faults`.
    """

    _fields_ = (
        ("address", c_char * 16),
        ("phase", c_uint32),
        ("vfio_number", c_uint32),
        ("driver", c_char * 32),
        ("override", c_char * 64),
        ("fault_driver", c_char * 32),
        ("bind_errno", c_uint32),
        ("bind_is_lost", c_uint32),
        ("bind_ms", c_uint32),
        ("unbind_ms", c_uint32),
        ("config_reads_ff", c_uint32),
        ("link_width", c_uint32),
        ("fatal_errors", c_uint32),
        ("nonfatal_errors", c_uint32),
        ("wake_ups", c_uint32),
        ("reserved", c_uint32),
    )


class PciId(Structure):
    """An id that a driver was told with `new_id`. `vendor` 0 marks a free record."""

    _fields_ = (("driver", c_char * 32), ("vendor", c_uint32), ("device", c_uint32))


class NodeState(Structure):
    """One copy of the changing state. If `clock_frozen_ns` is 0, the event clock runs.

    The bits of `vfio_modules` are the places of `pci.modules.MODULES`.
    """

    _fields_ = (
        ("boot_id", c_char * 36),
        ("follows_host_boot", c_uint32),
        ("module_loaded", c_uint32),
        ("rule_count", c_uint32),
        ("next_rule_id", c_uint32),
        ("clock_frozen_ns", c_int64),
        ("clock_offset_ns", c_int64),
        ("gpus", GpuState * MAX_GPUS),
        ("tables", GpuTables * MAX_GPUS),
        ("rules", Rule * MAX_RULES),
        ("imex", Imex),
        ("vfio_modules", c_uint32),
        ("pci_function_count", c_uint32),
        ("pci_functions", PciFunction * MAX_PCI_FUNCTIONS),
        ("pci_ids", PciId * MAX_PCI_IDS),
    )


class Event(Structure):
    """One record of the event ring (§8)."""

    _fields_ = (
        ("sequence", c_uint64),
        ("time_ns", c_uint64),
        ("type", c_uint64),
        ("data", c_uint64),
        ("gpu", c_uint32),
        ("gpu_instance", c_uint32),
        ("compute_instance", c_uint32),
        ("reserved", c_uint32),
    )


class CallCounter(Structure):
    """All and failed calls of one function since the last reset. Changed without the lock."""

    _fields_ = (("calls", c_uint64), ("errors", c_uint64))


class RuleHits(Structure):
    """The calls that the rule in this slot matched and applied to. Changed without the lock."""

    _fields_ = (("hits", c_uint64), ("seen", c_uint64))


REGIONS: dict[str, tuple[int, type[Any]]] = {
    "header": (0x000000, Header),
    "description": (0x001000, Description),
    "json": (0x040000, c_char * 0x0C0000),
    "state0": (0x100000, NodeState),
    "state1": (0x180000, NodeState),
    "initial": (0x200000, NodeState),
    "events": (0x280000, Event * MAX_EVENTS),
    "counters": (0x300000, CallCounter * MAX_FUNCTIONS),
    "rule_hits": (0x310000, RuleHits * MAX_RULES),
}

_STRUCTURES: tuple[type[Structure], ...] = (
    Header, MigProfile, GpuSpec, Description, ComputeInstance, GpuInstance, Process, GpuState,
    GpuTables, Rule, Imex, PciFunction, PciId, NodeState, Event, CallCounter, RuleHits,
)  # fmt: skip
_CONSTANTS = (
    "BYTE_ORDER", "FILE_SIZE", "MAX_GPUS", "MAX_GI_PROFILES", "MAX_GPU_INSTANCES",
    "MAX_COMPUTE_INSTANCES", "MAX_PROCESSES", "MAX_RULES", "MAX_EVENTS", "MAX_IMEX_NODES",
    "MAX_PROC_ROOT", "CLIENT_LOCKS", "INITIALISATION_LOCKS", "SESSION_LOCK", "CONTEXT_LOCKS",
    "CONTEXT_CREATION_LOCKS", "INSTANCE_CONTEXT_LOCKS", "NOT_AVAILABLE", "ANY_GPU", "NO_RESULT",
    "UNTIL_REMOVED", "ALWAYS", "NO_INSTANCE", "MAX_OTHER_ROOT", "MAX_PCI_FUNCTIONS", "MAX_PCI_IDS",
    "SYSTEM_EVENT_UNBIND", "SYSTEM_EVENT_BIND", "BROKEN_NOW", "OFF_BUS",
)  # fmt: skip
_SCALARS = {
    c_char: "char",
    c_uint8: "uint8_t",
    c_int32: "int32_t",
    c_int64: "int64_t",
    c_uint32: "uint32_t",
    c_uint64: "uint64_t",
}


def c_header() -> str:
    """`layout.h`: the structures of this module in C, and the offset of each region."""
    body = _declarations()
    return f"{body}\n#define SIM_LAYOUT UINT64_C({fingerprint():#x})\n"


def fingerprint() -> int:
    """A hash of the layout. The library refuses a file with another layout."""
    return int.from_bytes(hashlib.sha256(_declarations().encode()).digest()[:8], "little")


def _declarations() -> str:
    lines = ["/* Generated from nvdra_sim/state_file/layout.py. Do not edit. */", "#pragma once"]
    lines += ["#include <stddef.h>", "#include <stdint.h>", ""]
    lines += [f"#define SIM_{name} ({globals()[name]:#x})" for name in _CONSTANTS]
    lines += [f'#define SIM_MAGIC "{MAGIC.decode()}"']
    for name, values in (
        ("VISIBILITY", VISIBILITY),
        ("PRIVILEGE", PRIVILEGE),
        ("LOST_WAIT", LOST_WAIT),
        ("PROCESS", PROCESS),
        ("REMAPPING", REMAPPING),
    ):
        lines += [f"#define SIM_{name}_{key.upper()} {value}" for key, value in values.items()]
    lines += [f"#define SIM_AT_{name.upper()} {offset:#x}" for name, (offset, _) in REGIONS.items()]
    for structure in _STRUCTURES:
        lines += ["", *_declaration(structure)]
    return "\n".join(lines) + "\n"


def _declaration(structure: type[Structure]) -> list[str]:
    name = f"struct {c_name(structure)}"
    fields = [(field[0], field[1]) for field in structure._fields_]
    return [
        f"{name} {{",
        *(f"    {_field(field, kind)};" for field, kind in fields),
        "};",
        f"_Static_assert(sizeof({name}) == {sizeof(structure)}, {_quoted(name)});",
        *(
            f"_Static_assert(offsetof({name}, {field}) == {getattr(structure, field).offset}, "
            f"{_quoted(f'{name}.{field}')});"
            for field, _ in fields
        ),
    ]


def _field(name: str, kind: type[Any]) -> str:
    if issubclass(kind, Array):
        element: type[Any] = vars(kind)["_type_"]
        return f"{_type(element)} {name}[{kind._length_}]"
    return f"{_type(kind)} {name}"


def _type(kind: type[Any]) -> str:
    return f"struct {c_name(kind)}" if issubclass(kind, Structure) else _SCALARS[kind]


def _quoted(text: str) -> str:
    return f'"{text}"'


def c_name(structure: type[Structure]) -> str:
    """The C name of a structure: `sim_gpu_state` for `GpuState`."""
    words = "".join(
        f"_{letter.lower()}" if letter.isupper() else letter for letter in structure.__name__
    )
    return f"sim{words}"
