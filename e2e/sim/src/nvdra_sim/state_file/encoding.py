# SPDX-License-Identifier: Apache-2.0
"""Convert a `NodeDescription` to the structures of the state file."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import Structure
from typing import TypeVar

from nvdra_sim.description import (
    Fault,
    Gpu,
    MigInstance,
    MigProfile,
    MigTable,
    NodeDescription,
    Platform,
)
from nvdra_sim.filesystem.sysfs import CPUS_PER_NUMA_NODE
from nvdra_sim.native import nvml_functions
from nvdra_sim.pci import bus as pci_bus
from nvdra_sim.state_file import layout, pci_records

NVIDIA_VENDOR = 0x10DE
AMPERE = 7  # keeps its MIG mode in the InfoROM; later GPUs lose it when the driver is unloaded
INIT_WITHOUT_GPUS = {"success": 0, "driver_not_loaded": 9, "gpu_not_found": 28}

StructureT = TypeVar("StructureT", bound=Structure)


class UnsupportedError(ValueError):
    """The library does not simulate the described behaviour."""


def description(node: NodeDescription) -> layout.Description:
    """The part of the node that never changes.

    Raises:
        UnsupportedError: A part of `node` would have no effect.
    """
    _refuse_unsupported_node(node)
    delays = (node.latency_ms[one.latency_class] for one in nvml_functions.functions())
    return _fill(
        layout.Description(),
        driver_version=node.driver.version,
        driver_branch=node.driver.branch,
        nvml_version=node.driver.nvml_version,
        cuda_version=node.driver.cuda_version,
        api_level=node.driver.api_level,
        init_without_gpus=INIT_WITHOUT_GPUS[node.init_without_gpus],
        privilege=layout.PRIVILEGE[node.privilege],
        visibility=layout.VISIBILITY[node.visibility],
        control_major=node.control_node.major,
        control_minor=node.control_node.minor,
        caps_major=node.majors.nvidia_caps,
        stand_in_nodes=node.render.nodes == "openable",
        privileged_queries=node.privilege_queries,
        fabric_bring_up_ms=node.fabric.bring_up_ms,
        imex_signal_window_ms=node.imex.signal_window_ms,
        imex_needs_capability=node.imex.needs_capability,
        imex_retry_first_ms=node.imex.retry_first_ms,
        imex_retry_ceiling_ms=node.imex.retry_ceiling_ms,
        imex_name_retry_ms=node.imex.name_retry_ms,
        imex_mismatch_is_permanent=node.imex.mismatch_is_permanent,
        imex_ctl_says_unavailable=node.imex.ctl_says_unavailable,
        imex_ctl_patience_ms=node.imex.ctl_patience_ms,
        fabric_supported=node.fabric.call == "success",
        mig_capacity_when_off=node.mig.max_count_when_off == "capacity",
        mig_not_supported_when_off=node.mig.handle_when_off == "not_supported",
        mig_sparse_index=node.mig.sparse_index,
        mig_ampere_resets_itself=node.mig.ampere_reset == "auto",
        mig_offers_rev1="rev1" in node.mig.ci_extra,
        mig_offers_nvl="nvl" in node.mig.ci_extra,
        mig_fresh_uuids=node.mig.uuid == "fresh",
        mig_reuses_handles=node.mig.reuse_handles,
        mig_reversed_halves=node.mig.gi_id_order == "reversed",
        mig_clients_block_switch=node.mig.switch_blocked_by_clients == "all",
        persistence_blocks_reset=node.persistence_blocks_reset,
        mig_busy_fails_call=node.mig.busy_switch == "return_code",
        gpu_lost_wait=layout.LOST_WAIT[node.gpu_lost_wait],
        seed=node.seed & 0xFFFF_FFFF,
        cpus_per_numa_node=CPUS_PER_NUMA_NODE,
        gpu_count=len(node.gpus),
        latency_ms=delays,
        gpus=(_gpu(gpu) for gpu in node.gpus),
    )


def initial_state(node: NodeDescription) -> layout.NodeState:
    """The initial state of the node, without fault rules."""
    state = _fill(
        layout.NodeState(),
        boot_id=node.boot_id,
        follows_host_boot=node.boot_id_is_host,
        module_loaded=node.driver.module_loaded,
        next_rule_id=1,
        gpus=(_gpu_state(gpu, node) for gpu in node.gpus),
        tables=(_tables(gpu) for gpu in node.gpus),
    )
    pci_records.write(state, pci_bus.at_boot(node))
    return state


def rule(fault: Fault) -> layout.Rule:
    """A fault rule without its id.

    Raises:
        UnsupportedError: A part of `fault` would have no effect.
    """
    activates = "nvmlDeviceSetMigMode" in nvml_functions.matching(fault.function)
    has_status = fault.activation_status is not None
    asked = {
        "activation_status": has_status and not activates,
        "result SUCCESS": fault.result == 0 and not has_status,
    }
    _refuse_unsupported(f"{name} of a fault rule" for name, given in asked.items() if given)
    if len(fault.function.encode()) >= layout.Rule.function.size:
        raise UnsupportedError(f"the glob {fault.function!r} is too long")
    return _fill(
        layout.Rule(),
        gpu=layout.ANY_GPU if fault.gpu is None else fault.gpu,
        result=layout.NO_RESULT if fault.result is None else fault.result,
        times=fault.times or 0,
        delay_ms=fault.delay_ms,
        after_calls=fault.after_calls,
        chance=round(fault.probability * layout.ALWAYS),
        do_work=fault.do_work,
        abort=fault.abort,
        activation_status=layout.NO_RESULT
        if fault.activation_status is None
        else fault.activation_status,
        function=fault.function,
    )


def _gpu(gpu: Gpu) -> layout.GpuSpec:
    major, minor = gpu.compute_capability
    spec = _fill(
        layout.GpuSpec(),
        uuid=gpu.uuid,
        name=gpu.name,
        serial=gpu.serial or "",
        vbios=gpu.vbios,
        board_part_number=gpu.board_part_number,
        pcie_root=gpu.pcie_root,
        excluded=gpu.excluded,
        node_major=gpu.node.major,
        node_minor=gpu.node.minor,
        module_id=gpu.module_id,
        pci_domain=gpu.bus.domain,
        pci_bus=gpu.bus.bus,
        pci_device=gpu.bus.device,
        pci_device_id=gpu.pci_device << 16 | NVIDIA_VENDOR,
        pci_subsystem_id=gpu.pci_subsystem << 16 | NVIDIA_VENDOR,
        pcie_generation=gpu.pcie_generation,
        numa_node=gpu.numa_node,
        memory_numa_node=_or_absent(gpu.memory_numa_node),
        architecture=gpu.architecture,
        brand=gpu.brand,
        capability_major=major,
        capability_minor=minor,
        cores=gpu.cores,
        memory_bus_bits=gpu.memory_bus_bits,
        memory_in_nvml=gpu.memory_nvml,
        memory_mib=gpu.memory_mib,
        reserved_mib=gpu.reserved_mib,
        bar1_mib=gpu.bar1_mib,
        power_min_mw=gpu.power_min_w * 1000,
        power_max_mw=gpu.power_max_w * 1000,
        power_idle_mw=gpu.idle_power_w * 1000,
        temperature_c=gpu.idle_temperature_c,
        clock_graphics_mhz=gpu.clock_graphics_mhz,
        clock_memory_mhz=gpu.clock_memory_mhz,
        clock_video_mhz=gpu.clock_video_mhz,
        ecc=gpu.ecc,
        addressing=_or_absent(gpu.addressing),
        virtualization=gpu.virtualization,
        c2c=_or_absent(gpu.c2c),
        gsp=gpu.gsp,
        nvlinks=gpu.nvlinks,
        supported_events=gpu.supported_events,
    )
    if gpu.platform is not None:
        _set_platform(spec, gpu.platform)
    if gpu.mig is not None:
        _set_mig_table(spec, gpu.mig.table)
    return spec


def _set_platform(spec: layout.GpuSpec, platform: Platform) -> None:
    _fill(
        spec,
        has_platform=True,
        platform_peer_type=platform.peer_type,
        platform_ib_guid=platform.ib_guid.bytes,
        platform_rack_guid=platform.rack_guid.bytes,
        platform_chassis_serial=platform.chassis_serial.encode().ljust(16, b"\0"),
        platform_slot=platform.slot,
        platform_tray=platform.tray,
        platform_host=platform.host,
    )


def _set_mig_table(spec: layout.GpuSpec, table: MigTable) -> None:
    _fill(
        spec,
        mig_compute_slices=table.compute_slices,
        mig_memory_slices=table.memory_slices,
        mig_mode_outlives_boots=spec.architecture == AMPERE,
        mig_profile_count=len(table.profiles),
        mig_profiles=(_profile(profile) for profile in table.profiles),
    )


def _profile(profile: MigProfile) -> layout.MigProfile:
    return _fill(
        layout.MigProfile(),
        name=f"MIG {profile.name}",
        enumerator=profile.enum,
        id=profile.id,
        slices=profile.slices,
        max_instances=profile.max_instances,
        memory_mib=profile.memory_mib,
        sms=profile.sms,
        copy_engines=profile.copy_engines,
        decoders=profile.decoders,
        encoders=profile.encoders,
        jpeg_engines=profile.jpeg_engines,
        ofa_engines=profile.ofa_engines,
        capabilities=profile.capabilities,
        placement_size=profile.placement_size,
        placement_count=len(profile.placement_starts),
        placement_starts=profile.placement_starts,
    )


def _gpu_state(gpu: Gpu, node: NodeDescription) -> layout.GpuState:
    has_driver = gpu.bound_driver != "nvidia" or node.driver.module_loaded
    return _fill(
        layout.GpuState(),
        minor=gpu.minor,
        bound_to_nvidia=gpu.bound_driver == "nvidia" and has_driver and not gpu.excluded,
        initialisation_ms=gpu.initialisation_ms,
        driver=(gpu.bound_driver or "") if has_driver else "",
        mig_mode=gpu.mig is not None and gpu.mig.enabled,
        mig_pending=gpu.mig is not None and gpu.mig.enabled,
        instances_made=_instances_made(gpu),
        fabric_uuid=gpu.fabric.cluster_uuid.bytes,
        fabric_state=gpu.fabric.state,
        fabric_status=gpu.fabric.status,
        fabric_clique=gpu.fabric.clique_id,
        fabric_health_mask=gpu.fabric.health_mask,
        fabric_health_summary=gpu.fabric.health_summary,
    )


def _instances_made(gpu: Gpu) -> int:
    made = gpu.mig.instances if gpu.mig else ()
    return sum(1 + len(instance.compute) for instance in made)


def _tables(gpu: Gpu) -> layout.GpuTables:
    tables = layout.GpuTables()
    if gpu.mig is not None:
        for instance in gpu.mig.instances:
            tables.instances[instance.id] = gpu_instance(instance, gpu.mig.table)
    return tables


def gpu_instance(instance: MigInstance, table: MigTable) -> layout.GpuInstance:
    """The record of a GPU instance and its compute instances."""
    record = _fill(
        layout.GpuInstance(),
        in_use=True,
        profile=table.profile(instance.profile).id,
        start=instance.start,
        size=instance.size,
        incarnation=instance.incarnation,
    )
    for compute in instance.compute:
        record.compute[compute.id] = _fill(
            layout.ComputeInstance(),
            in_use=True,
            profile=compute.profile_id,
            start=compute.start,
            size=compute.size,
            incarnation=compute.incarnation,
            uuid=compute.uuid.bytes,
        )
    return record


def _or_absent(column: int | None) -> int:
    return layout.NOT_AVAILABLE if column is None else int(column)


def _fill(structure: StructureT, **fields: str | int | Iterable[object]) -> StructureT:
    """Sets fields. Strings are encoded as UTF-8; iterables are copied into arrays."""
    for name, value in fields.items():
        if isinstance(value, str):
            setattr(structure, name, value.encode())
        elif isinstance(value, int):
            setattr(structure, name, value)
        else:
            array = getattr(structure, name)
            for place, element in enumerate(value):
                array[place] = element
    return structure


def _refuse_unsupported_node(node: NodeDescription) -> None:
    asked = [
        *(["mig.renumber_minor_on_toggle"] if node.mig.renumber_minor_on_toggle else []),
        *(["fabric.follow_fm"] if node.fabric.follow_fm else []),
        *(["events.early_timeout_probability"] if node.event_early_timeout_probability else []),
    ]
    _refuse_unsupported(asked)


def _refuse_unsupported(asked: Iterable[str]) -> None:
    if parts := ", ".join(asked):
        raise UnsupportedError(f"the library does not simulate {parts}")
