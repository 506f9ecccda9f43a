# SPDX-License-Identifier: Apache-2.0
"""What a GPU keeps and loses when its driver starts it: at boots, resets and binds.

Source: docs/reference/nvml-simulator.md §10.6.
"""

from __future__ import annotations

import time

from nvdra_sim.description import Gpu
from nvdra_sim.filesystem import capability_files
from nvdra_sim.state_file import encoding, layout
from nvdra_sim.state_file.state import State


def keeps_mig_mode(gpu: Gpu) -> bool:
    """Whether the GPU keeps its MIG mode over a boot."""
    return gpu.architecture == encoding.AMPERE


def power_on(state: State, now: layout.NodeState, gpu: Gpu, *, keeps_mig_mode: bool) -> None:
    """Resets a GPU to its configuration, except for what firmware keeps and instance counters.

    It keeps its minor number, too: the driver assigns that when it is bound, not when it starts.
    """
    before = layout.GpuState.from_buffer_copy(now.gpus[gpu.index])
    now.gpus[gpu.index] = state.initial().gpus[gpu.index]
    after = now.gpus[gpu.index]
    after.mig_mode = after.mig_pending = before.mig_pending if keeps_mig_mode else 0
    after.minor = before.minor
    after.incarnation = before.incarnation + 1
    after.instances_made = before.instances_made
    after.initialisation_ms = before.initialisation_ms
    after.ecc_aggregate = before.ecc_aggregate
    if before.row_remapping == layout.REMAPPING["failed"]:
        after.row_remapping = before.row_remapping
    if state.description().fabric.bring_up_ms:
        after.fabric_since_ns = time.time_ns()
    now.tables[gpu.index] = layout.GpuTables()
    capability_files.update(now, [gpu], state.proc_root)
