"""Mutants of nvdra-gpu-plugin: plans, prepares, NVML sessions, what is published."""

from typing import Final

from tests.mutants.mutant import Mutant

_PLUGIN: Final = "packages/nvdra-gpu-plugin/src/nvdra_gpu_plugin"
_UNIT: Final = "packages/nvdra-gpu-plugin/tests/unit"

_PLAN: Final = f"{_UNIT}/claims/test_plan.py"
_SEVERAL: Final = f"{_UNIT}/claims/test_plan_of_several_devices.py"
_PREPARER: Final = f"{_UNIT}/claims/test_preparer.py"
_COMPONENT: Final = "packages/nvdra-gpu-plugin/tests/component"
_CHANGED: Final = f"{_COMPONENT}/test_changed_nodes.py"
_MONITOR: Final = f"{_UNIT}/hardware/test_device_monitor.py"
_GATE: Final = f"{_UNIT}/nvml_release/test_prepare_gate.py"
_RELEASE_STATE: Final = f"{_UNIT}/nvml_release/test_release_state.py"

MUTANTS: Final = (
    Mutant(
        "plan: any admin access lifts the doubt",
        f"{_PLUGIN}/claims/plan.py",
        "all(device.is_admin for device in record.devices)",
        "any(device.is_admin for device in record.devices)",
        "A GPU that a pod uses is given away beside a monitored one.",
        (_SEVERAL,),
    ),
    Mutant(
        "plan: the share of a device is not recorded",
        f"{_PLUGIN}/claims/plan.py",
        "        share_id=result.share_id,\n",
        "",
        "The kubelet takes one share of a device for another.",
        (_SEVERAL,),
    ),
    Mutant(
        "plan: another node's pool is served",
        f"{_PLUGIN}/claims/plan.py",
        "    if result.pool != node:",
        "    if False:",
        "A pod gets a GPU of this node that was allocated on another one.",
        (_PLAN,),
    ),
    Mutant(
        "plan: a GPU in MIG mode is handed out whole",
        f"{_PLUGIN}/claims/plan.py",
        "    elif isinstance(device, Gpu) and device.is_mig_enabled:",
        "    elif False:",
        "CUDA finds no device in the container.",
        (_PLAN,),
    ),
    Mutant(
        "plan: a subrequest is answered by its own name",
        f"{_PLUGIN}/claims/plan.py",
        "        request=result.base_request,",
        "        request=result.request,",
        "The kubelet does not find the request, and the container has no GPU.",
        (_PLAN,),
    ),
    Mutant(
        "use: admin access excludes others",
        f"{_PLUGIN}/devices/device_use.py",
        "    if device.is_admin:\n        return NOTHING\n",
        "",
        "Monitoring keeps every pod from its GPU, and does not start while pods use GPUs.",
        (_PLAN,),
    ),
    Mutant(
        "use: a GPU is known by its address alone",
        f"{_PLUGIN}/devices/device_use.py",
        "        return DeviceUse(frozenset((device.uuid, *gpu)))",
        "        return DeviceUse(gpu)",
        "After the bus was renumbered, a GPU is given to two pods.",
        (_PLAN,),
    ),
    Mutant(
        "use: a MIG device does not exclude its whole GPU",
        f"{_PLUGIN}/devices/device_use.py",
        "            return DeviceUse(frozenset((device.uuid,)), gpu)",
        "            return DeviceUse(frozenset((device.uuid,)))",
        "A GPU whose MIG mode was switched off is given to a pod beside the one with its part.",
        (f"{_UNIT}/claims/test_mig_claims.py",),
    ),
    Mutant(
        "index: a part excludes other parts",
        f"{_PLUGIN}/devices/claim_index.py",
        "            (wanted.parts, (self._whole,)),",
        "            (wanted.parts, (self._whole, self._parts)),",
        "Of the MIG devices of a GPU only one can be used.",
        (f"{_UNIT}/claims/test_mig_claims.py",),
    ),
    Mutant(
        "index: a GPU that is held under another name is offered",
        f"{_PLUGIN}/devices/claim_index.py",
        "            and found.name != device.device",
        "            and False",
        "A pod is scheduled to a GPU that another one has, and waits for as long as that one runs.",
        (f"{_UNIT}/devices/test_claim_index.py",),
    ),
    Mutant(
        "index: a claim that is prepared anew keeps what it had",
        f"{_PLUGIN}/devices/claim_index.py",
        "        self.remove(record.uid)\n        self._records[record.uid] = record",
        "        self._records[record.uid] = record",
        "A GPU is held by a claim that has another one.",
        (_PLAN,),
    ),
    Mutant(
        "prepare: no lock of the GPU",
        f"{_PLUGIN}/claims/preparer.py",
        "        hold = self._recovery.locks.hold(",
        "        hold = type(self._recovery.locks)().hold(",
        "Two pods get the same GPU.",
        (_PREPARER,),
        (
            f"{_COMPONENT}/test_prepare.py"
            "::test_two_claims_that_want_one_gpu_at_once_do_not_both_get_it",
        ),
    ),
    Mutant(
        "prepare: the holder's time is not told",
        f"{_PLUGIN}/claims/preparer.py",
        "            error.since = self._prepared_claims.prepared_at(error.holder.uid)\n",
        "",
        "Users are told that the GPU is held since just now.",
        (_PREPARER,),
        (
            f"{_COMPONENT}/test_waiting_for_devices.py"
            "::test_a_holder_that_stays_is_the_reason_before_the_call_ends",
        ),
    ),
    Mutant(
        "prepare: a changed node is not planned again",
        f"{_PLUGIN}/claims/preparer.py",
        "                if self._gpus.snapshot is snapshot:",
        "                if True:",
        "A pod is given a GPU, or libraries of a driver, that are no longer there.",
        (_PREPARER,),
    ),
    Mutant(
        "repeat: the GPU is not asked",
        f"{_PLUGIN}/claims/preparer.py",
        "                    await self._verify(snapshot, devices, deadline)\n",
        "                    pass\n",
        "A container starts with a GPU that fell off the bus.",
        (_PREPARER,),
    ),
    Mutant(
        "repeat: another GPU of the same name is not told",
        f"{_PLUGIN}/claims/preparer.py",
        "        record_checks.check_same_gpus(",
        "        (lambda *_: None)(",
        "Users are told that a GPU does not work, and not that it is another one now.",
        (_PREPARER,),
    ),
    Mutant(
        "repeat: a spec that is gone is not missed",
        f"{_PLUGIN}/claims/node_specs.py",
        "        if record.generation != current.name and not self.has(record.generation):",
        "        if False:",
        "A container is to start with CDI names that no spec has.",
        component=(
            f"{_CHANGED}::test_a_held_claim_is_answered_with_names_that_can_be_resolved_or_refused",
        ),
    ),
    Mutant(
        "spec: the device node of another GPU is handed out",
        f"{_PLUGIN}/cdi/node_spec.py",
        '        if node.path == f"/dev/nvidia{gpu.minor}" and node.minor != gpu.minor:',
        "        if False:",
        "A pod works on a GPU that another pod was given.",
        component=(f"{_CHANGED}::test_a_device_node_of_another_gpu_is_not_handed_out",),
    ),
    Mutant(
        "specs: they are removed before it is known who needs them",
        f"{_PLUGIN}/claims/node_specs.py",
        "        if self._gpus.snapshot is None or not self._may_remove:",
        "        if self._gpus.snapshot is None:",
        "Pods of an earlier driver do not start again.",
        (f"{_UNIT}/claims/test_node_specs.py",),
    ),
    Mutant(
        "monitor: a replaced spec is not kept for prepares under way",
        f"{_PLUGIN}/hardware/device_monitor.py",
        "            self._replaced_at[generation] = self._clock.monotonic()\n",
        "            pass\n",
        "A pod is answered with names that no spec has.",
        (_MONITOR,),
    ),
    Mutant(
        "monitor: replaced specs are kept for ever",
        f"{_PLUGIN}/hardware/device_monitor.py",
        "if now - at < _KEEP_REPLACED_S",
        "if True",
        "Specs of every driver that a node had stay.",
        (_MONITOR,),
    ),
    Mutant(
        "nvml: closed below running calls",
        f"{_PLUGIN}/hardware/device_monitor.py",
        "        if await self._is_idle(timeout_s):\n",
        "        if True:\n",
        "The plugin crashes when a driver is replaced while a GPU is asked.",
        (_MONITOR,),
    ),
    Mutant(
        "nvml: prepares pass although it is released",
        f"{_PLUGIN}/nvml_release/prepare_gate.py",
        "        if not self.is_open:\n",
        "        if False:\n",
        "A claim is prepared for a GPU that is just being reset.",
        (_GATE,),
    ),
    Mutant(
        "nvml: released below prepares",
        f"{_PLUGIN}/nvml_release/prepare_gate.py",
        "        self._empty.clear()\n",
        "",
        "A claim comes in between the look at the claims and the reset of its GPU.",
        (_GATE,),
    ),
    Mutant(
        "nvml: a release never ends",
        "packages/nvdra-api/src/nvdra_runtime/kubeletplugin/nvml_release.py",
        "        return self.until is not None and now >= self.until",
        "        return False",
        "Pods wait for ever after an administrator has forgotten to resume.",
        (_RELEASE_STATE,),
    ),
    Mutant(
        "nvml: GPUs of another driver version are known",
        f"{_PLUGIN}/hardware/device_monitor.py",
        "        return [gpu for gpu in gpus if gpu.driver_version == session.versions.driver]",
        "        return gpus",
        "GPUs are published with the version of a driver that is gone.",
        (_MONITOR,),
    ),
    Mutant(
        "monitor: an equal state wakes everybody",
        f"{_PLUGIN}/hardware/device_monitor.py",
        "        if state != self.state:\n",
        "        if True:\n",
        "Slices are compared every five seconds though nothing changes.",
        (_MONITOR,),
    ),
    Mutant(
        "driver: block devices count as character devices",
        f"{_PLUGIN}/driver/installation.py",
        '    for line in text.partition("Block devices:")[0].splitlines():',
        "    for line in text.splitlines():",
        "A device node of another driver is given to containers.",
        (f"{_UNIT}/driver/test_installation.py",),
    ),
    Mutant(
        "driver: a library that was replaced is the same",
        f"{_PLUGIN}/driver/installation.py",
        "    return FileID(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)",
        "    return FileID(status.st_dev, 0, status.st_size, 0)",
        "After an update of the driver the plugin asks the old library.",
        (f"{_UNIT}/driver/test_installation.py",),
    ),
    Mutant(
        "published: a GPU in MIG mode is offered whole",
        f"{_PLUGIN}/devices/inventory.py",
        "        return self.mig_devices if self.is_mig_enabled else (self,)",
        "        return (self,)",
        "Pods are scheduled to a GPU that they cannot get.",
        (f"{_UNIT}/publishing/test_layout.py",),
    ),
    Mutant(
        "published: versions keep leading zeros",
        f"{_PLUGIN}/publishing/attributes.py",
        'numbers = ".".join(str(int(part or 0)) for part in match.groups()[:3])',
        'numbers = ".".join(part or "0" for part in match.groups()[:3])',
        "The API server rejects the slice, and the node offers nothing.",
        (f"{_UNIT}/publishing/test_attributes.py",),
    ),
)
