# SPDX-License-Identifier: Apache-2.0
"""Create and destroy MIG instances on a node that runs, as an administrator does.

Each function is one transaction on the state file. The driver reports the change to those who wait
for it, and the capability files of the simulated /proc change before.

Source: docs/reference/nvml-simulator.md §7.3-7.6, §8, §14.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from nvdra_sim import incidents
from nvdra_sim.configuration import mig_instances
from nvdra_sim.configuration.file_schema import MigInstanceEntry
from nvdra_sim.description import Gpu, MigInstance, MigTable
from nvdra_sim.errors import ConfigError
from nvdra_sim.filesystem import capability_files
from nvdra_sim.state_file import clients, encoding, layout
from nvdra_sim.state_file.state import State, StateError


def create(
    state: State,
    gpu: Gpu,
    profile: str,
    start: int,
    compute: Sequence[str] | None = None,
    proc_root: Path | None = None,
) -> int:
    """Creates a GPU instance and compute instances in it. Returns the id of the GPU instance.

    Args:
        state: The state of the node.
        gpu: A GPU in MIG mode.
        profile: Such as `3g.40gb`.
        start: The first memory slice.
        compute: Sizes of the compute instances, such as `2c`. Without any, the GPU instance is no
            MIG device yet. None for one that covers all of it.
        proc_root: The simulated /proc, if it is not that of the state file.

    Raises:
        StateError: The GPU is not in MIG mode, or there is no such profile or no room.
    """
    with state.transaction() as now:
        record = now.gpus[gpu.index]
        if gpu.mig is None or not record.mig_mode:
            raise StateError(f"GPU {gpu.index} is not in MIG mode")
        instances, table = now.tables[gpu.index].instances, gpu.mig.table
        if compute is None:
            compute = [f"{each.slices}c" for each in table.profiles if each.name == profile]
        wanted = MigInstanceEntry(profile=profile, start=start, compute=tuple(compute))
        try:
            made = mig_instances.create(
                wanted,
                _existing(instances, table),
                table,
                state.description().mig,
                UUID(gpu.uuid.removeprefix("GPU-")),
                record.instances_made,
            )
        except ConfigError as error:
            raise StateError("; ".join(each.message for each in error.problems)) from None
        instances[made.id] = encoding.gpu_instance(made, table)
        record.instances_made += 1 + len(made.compute)
        _report(state, now, gpu, proc_root)
    return made.id


def destroy(state: State, gpu: Gpu, gpu_instance: int, proc_root: Path | None = None) -> None:
    """Destroys a GPU instance and the compute instances in it.

    Raises:
        StateError: It does not exist, or a process uses it.
    """
    with state.transaction() as now:
        table = now.tables[gpu.index]
        if not _exists(table, gpu_instance):
            raise StateError(f"GPU {gpu.index} has no GPU instance {gpu_instance}")
        is_listed = any(each.pid and each.gpu_instance == gpu_instance for each in table.processes)
        if is_listed or clients.has_contexts(state, gpu.index, gpu_instance, None):
            raise StateError(f"GPU instance {gpu_instance} is in use by another client")
        table.instances[gpu_instance] = layout.GpuInstance()
        _report(state, now, gpu, proc_root)


def destroy_compute(
    state: State,
    gpu: Gpu,
    gpu_instance: int,
    compute_instance: int,
    proc_root: Path | None = None,
) -> None:
    """Destroys a compute instance. Its GPU instance stays.

    Raises:
        StateError: It does not exist, or a process computes on it.
    """
    with state.transaction() as now:
        table = now.tables[gpu.index]
        exists = _exists(table, gpu_instance) and compute_instance < layout.MAX_COMPUTE_INSTANCES
        if not exists or not table.instances[gpu_instance].compute[compute_instance].in_use:
            raise StateError(f"there is no compute instance {gpu_instance}/{compute_instance}")
        if clients.has_contexts(state, gpu.index, gpu_instance, compute_instance):
            raise StateError(
                f"compute instance {gpu_instance}/{compute_instance} is in use by another client"
            )
        table.instances[gpu_instance].compute[compute_instance] = layout.ComputeInstance()
        _report(state, now, gpu, proc_root)


def _report(state: State, now: layout.NodeState, gpu: Gpu, proc_root: Path | None) -> None:
    capability_files.update(now, [gpu], proc_root or state.proc_root)
    state.append_event(incidents.mig_change(now, gpu))


def _exists(table: layout.GpuTables, gpu_instance: int) -> bool:
    return gpu_instance < layout.MAX_GPU_INSTANCES and bool(table.instances[gpu_instance].in_use)


def _existing(records: Sequence[layout.GpuInstance], table: MigTable) -> list[MigInstance]:
    """The GPU instances, without what is in them."""
    names = {profile.id: profile.name for profile in table.profiles}
    return [
        MigInstance(
            id=number,
            profile=names[record.profile],
            start=record.start,
            size=record.size,
            incarnation=record.incarnation,
            compute=(),
        )
        for number, record in enumerate(records)
        if record.in_use
    ]
