# SPDX-License-Identifier: Apache-2.0
"""Mutants of nvdra-cd-plugin: labels of the node, records, admission, readiness, the fabric."""

from typing import Final

from tests.mutants.mutant import Mutant

_PLUGIN: Final = "packages/nvdra-cd-plugin/src/nvdra_cd_plugin"
_UNIT: Final = "packages/nvdra-cd-plugin/tests/unit"

_LABELS: Final = f"{_UNIT}/membership/test_node_labels.py"
_PREPARER: Final = f"{_UNIT}/claims/test_preparer.py"
_READINESS: Final = f"{_UNIT}/daemon/test_readiness.py"
_ADMISSION: Final = f"{_UNIT}/domains/test_admission.py"
_CLIQUE: Final = f"{_UNIT}/fabric/test_clique.py"
_MONITOR: Final = f"{_UNIT}/fabric/test_monitor.py"
_KNOWN: Final = f"{_UNIT}/fabric/test_known_clique.py"
_COMPONENT: Final = "packages/nvdra-cd-plugin/tests/component"
_DEAD: Final = f"{_COMPONENT}/test_dead_daemons.py"

MUTANTS: Final = (
    Mutant(
        "standby: an instance without the API server is ready",
        "packages/nvdra-api/src/nvdra_runtime/kubeletplugin/standby_state.py",
        '        return f"the kubelet\'s version is not known: {state.version_problem}"\n',
        '        return PassingRemark(f"the version is not known: {state.version_problem}")\n',
        "A rollout to a wrong proxy replaces every plugin.",
        component=(
            "packages/nvdra-cd-plugin/tests/component/test_rollouts.py::"
            "test_an_instance_that_does_not_reach_the_api_server_lets_the_former_one_go_on",
        ),
    ),
    Mutant(
        "standby: the clique of the former process is enough to be ready",
        "packages/nvdra-cd-plugin/src/nvdra_cd_plugin/status_report.py",
        "    if not fabric.has_answer and _has_no_driver(status.problem):\n",
        "    if False:\n",
        "A rollout to a wrong driver root replaces every plugin.",
        component=(
            "packages/nvdra-cd-plugin/tests/component/test_rollouts.py::"
            "test_an_instance_that_does_not_find_the_driver_lets_the_former_one_go_on",
        ),
    ),
    Mutant(
        "daemon: the clique of another boot",
        f"{_PLUGIN}/claims/preparer.py",
        "await self._engine.commit(await self._readiness.wait(record, deadline))",
        "await self._engine.commit(record)",
        "A tray that was moved to another rack joins the clique of the former one, for ever.",
        (_PREPARER,),
        component=(
            f"{_DEAD}::test_after_a_reboot_into_another_clique_the_daemon_joins_the_one_of_now",
        ),
    ),
    Mutant(
        "daemon: the node's clique is written for channels",
        f"{_PLUGIN}/daemon/clique_files.py",
        "if record.domain and not record.is_channel}",
        "if record.domain and record.is_channel}",
        "A domain stays Ready while the GPUs of a node are in another clique.",
        (f"{_UNIT}/daemon/test_clique_files.py",),
    ),
    Mutant(
        "fabric: GPUs that have left it are in the clique that is kept",
        f"{_PLUGIN}/fabric/monitor.py",
        "return self.clique if self.is_attached or not self.clique else NO_CLIQUE",
        "return self.clique",
        "A domain stays Ready while the GPUs of a node are in no fabric.",
        (_MONITOR,),
    ),
    Mutant(
        "fabric: GPUs that have left it are no problem of their node",
        f"{_PLUGIN}/fabric/monitor.py",
        "        if problem is None and known and not result.is_attached:\n",
        "        if False:\n",
        "The domain sends people to the Events of the Node, and there is none.",
        (_MONITOR,),
    ),
    Mutant(
        "readiness: a daemon in another clique is starting",
        f"{_PLUGIN}/daemon/readiness_watch.py",
        "        elif daemon is not None and daemon.clique and daemon.clique != clique:",
        "        elif False:",
        "A pod waits for ever, and nothing says that its daemon is in another clique.",
        component=(
            f"{_DEAD}::test_a_daemon_whose_gpus_are_in_another_clique_now_is_named_with_what_to_do",
        ),
    ),
    Mutant(
        "label: a claim waits for a domain that is gone",
        f"{_PLUGIN}/membership/node_membership.py",
        "                self._waits.fail(record.uid, error)\n",
        "",
        "A pod of a deleted domain is Terminating for 43 s.",
        component=(
            f"{_COMPONENT}/test_node_label.py::"
            "test_a_claim_that_waits_for_a_daemon_is_answered_when_its_domain_is_deleted",
        ),
    ),
    Mutant(
        "label: written without a resourceVersion",
        f"{_PLUGIN}/membership/node_labels.py",
        'change = {"metadata": {"labels": labels, "resourceVersion": version}}',
        'change = {"metadata": {"labels": labels}}',
        "A node leaves a domain because another one has taken it at the same time.",
        (_LABELS,),
    ),
    Mutant(
        "label: another domain's is removed",
        f"{_PLUGIN}/membership/node_labels.py",
        '                if current is None or uid not in ("", current):',
        "                if current is None:",
        "A domain loses a node that it works on.",
        (_LABELS,),
    ),
    Mutant(
        "label: another domain's is overwritten",
        f"{_PLUGIN}/membership/node_labels.py",
        "        if current and current != uid:",
        "        if False:",
        "A domain loses a node that it works on.",
        (_LABELS,),
    ),
    Mutant(
        "record: it goes before its CDI spec",
        f"{_PLUGIN}/claims/claim_specs.py",
        "        await self.withdraw(record)\n        yield\n",
        "        yield\n        await self.withdraw(record)\n",
        "A spec with IMEX channels stays after the claim.",
        (_PREPARER,),
        (
            f"{_COMPONENT}/test_crash_campaign.py::"
            "test_after_a_kill_at_any_call_a_start_and_the_kubelets_retry_recover",
        ),
    ),
    Mutant(
        "record: no lock of the device",
        f"{_PLUGIN}/claims/preparer.py",
        "            self._check_free(record)\n            yield",
        "            yield",
        "Two claims get the node's one channel.",
        (_PREPARER,),
    ),
    Mutant(
        "record: the holder's time is not told",
        f"{_PLUGIN}/claims/preparer.py",
        "            error.since = prepared.held_since(error.holder.uid)\n",
        "",
        "Users are told that the channel is held since just now.",
        (_PREPARER,),
    ),
    Mutant(
        "record: a daemon makes the node a member",
        f"{_PLUGIN}/claims/preparer.py",
        "channels = (record for record in self._prepared_claims.values() if record.is_channel)",
        "channels = iter(self._prepared_claims.values())",
        "Traces begin at the wrong time.",
        (_PREPARER,),
    ),
    Mutant(
        "admission: a channel in another namespace",
        f"{_PLUGIN}/domains/admission.py",
        "    if claim.namespace != domain.namespace:",
        "    if False:",
        "A tenant reads the memory of another tenant's job.",
        (_ADMISSION,),
    ),
    Mutant(
        "admission: any pod may be a daemon",
        f"{_PLUGIN}/domains/admission.py",
        '    if owner.get("kind") != "DaemonSet" or owner.get("name") != expected:',
        "    if False:",
        "A tenant's pod gets the right to manage IMEX.",
        (_ADMISSION,),
    ),
    Mutant(
        "admission: an owner that does not control the pod",
        f"{_PLUGIN}/domains/admission.py",
        'owner: JsonObject = next((each for each in owners if each.get("controller")), {})',
        "owner: JsonObject = next(iter(owners), {})",
        "A tenant's pod gets the right to manage IMEX.",
        (_ADMISSION,),
    ),
    Mutant(
        "admission: every channel though the domain allows one",
        f"{_PLUGIN}/domains/admission.py",
        "return available if domain.allows_all_channels and requested == AllocationMode.ALL else 1",
        "return available if requested == AllocationMode.ALL else 1",
        "A workload gets channels that its domain does not give.",
        (_ADMISSION,),
    ),
    Mutant(
        "readiness: a predecessor's entry counts",
        f"{_PLUGIN}/daemon/readiness.py",
        "    elif is_own is False:",
        "    elif False:",
        "A workload starts before the new daemon is there, and fails.",
        (_READINESS,),
    ),
    Mutant(
        "readiness: a daemon that is not READY counts",
        f"{_PLUGIN}/daemon/readiness.py",
        "    elif not own.is_ready:",
        "    elif False:",
        "A workload starts before its domain is formed, and fails.",
        (_READINESS,),
    ),
    Mutant(
        "readiness: too few nodes count",
        f"{_PLUGIN}/daemon/readiness.py",
        "    elif joined < min_nodes:",
        "    elif False:",
        "IMEX starts without peers that it will never learn of.",
        (_READINESS,),
    ),
    Mutant(
        "liveness: a lock that is free counts",
        f"{_PLUGIN}/daemon/liveness.py",
        '            return "" if is_held else _LOCK_IS_FREE',
        '            return ""',
        "A workload starts on the word of a daemon that is dead, and fails.",
        component=(
            f"{_DEAD}::"
            "test_a_daemon_that_was_killed_gives_no_channel_until_its_imex_is_ready_again",
        ),
    ),
    Mutant(
        "liveness: the reference's daemon must hold a lock",
        f"{_PLUGIN}/daemon/liveness.py",
        "        if is_held is not None:",
        "        if True:",
        "With daemons of the reference driver or of an older release no workload ever starts.",
        component=(
            f"{_DEAD}::test_the_lock_of_an_earlier_pod_says_nothing_of_a_daemon_without_one",
        ),
    ),
    Mutant(
        "channel: it is repeated after a reboot",
        f"{_PLUGIN}/claims/preparer.py",
        "return not record.is_joining and self._prepared_claims.is_of_this_boot(record.uid)",
        "return not record.is_joining",
        "After a reboot a workload starts before its daemon, and fails.",
        (_PREPARER,),
        component=(
            f"{_DEAD}::test_a_held_channel_waits_after_a_reboot_until_the_daemon_is_ready_again",
        ),
    ),
    Mutant(
        "channel: a claim that leaves its domain is no answer any more",
        f"{_PLUGIN}/claims/changes/join_domain.py",
        "    needs_start: ClassVar[bool] = False",
        "    needs_start: ClassVar[bool] = True",
        "Each unprepare of a channel is a write more, and 0.1.0 does not find what it has begun.",
        (_PREPARER,),
    ),
    Mutant(
        "channel: the record of a claim that never had one stays",
        f"{_PLUGIN}/claims/changes/join_domain.py",
        "                    if claim.is_joining:\n",
        "                    if False:\n",
        "A claim that is refused keeps the channel from the domain that the node is in.",
        (_PREPARER,),
    ),
    Mutant(
        "fabric: a failed GPU counts as joined",
        f"{_PLUGIN}/fabric/clique.py",
        "is_joined = self.state == GpuFabricState.COMPLETED and self.status == SUCCESS",
        "is_joined = self.state == GpuFabricState.COMPLETED",
        "A node with a broken fabric joins a clique, and jobs hang.",
        (_CLIQUE,),
    ),
    Mutant(
        "fabric: NVLink inside one node makes a clique",
        f"{_PLUGIN}/fabric/clique.py",
        "        return is_joined and self.cluster.int != 0",
        "        return is_joined",
        "All such nodes are taken for one clique.",
        (_CLIQUE,),
    ),
    Mutant(
        "fabric: GPUs in several cliques",
        f"{_PLUGIN}/fabric/clique.py",
        "    if len(joined) > 1:",
        "    if False:",
        "A node whose GPUs are in two cliques joins one of them by chance.",
        (_CLIQUE,),
    ),
    Mutant(
        "fabric: GPUs that still join are not waited for",
        f"{_PLUGIN}/fabric/clique.py",
        "    if unfinished and not tolerates_unfinished:",
        "    if False:",
        "After a boot a node has no clique, and domains form without it.",
        (_CLIQUE,),
    ),
    Mutant(
        "fabric: the clique of an earlier boot counts",
        f"{_PLUGIN}/fabric/known_clique.py",
        "is_same = document.boot_id == boot_id and document.policy == self._policy",
        "is_same = document.policy == self._policy",
        "A tray that was moved to another rack joins the former one's domains.",
        (_KNOWN,),
    ),
    Mutant(
        "fabric: NVML is queried while it is released",
        f"{_PLUGIN}/fabric/monitor.py",
        "            if release is not None:\n                await self._set_status(",
        "            if False:\n                await self._set_status(",
        "A GPU cannot be reset, because this plugin has it open.",
        (_MONITOR,),
    ),
    Mutant(
        "search: each claim takes a list",
        f"{_PLUGIN}/domains/uid_search.py",
        "        search = self._next.setdefault(path, _Search())\n",
        "        search = _Search()\n",
        "Claims with made-up UIDs keep the API server busy.",
        (f"{_UNIT}/domains/test_uid_search.py",),
    ),
    Mutant(
        "search: a later claim gets an earlier answer",
        f"{_PLUGIN}/domains/uid_search.py",
        "                    self._next.pop(path, None)  # who comes later needs a later list\n",
        "",
        "A domain that was just created is not found for ten minutes.",
        (f"{_UNIT}/domains/test_uid_search.py",),
    ),
    Mutant(
        "uid: anything may be a domain's UID",
        "packages/nvdra-api/src/nvdra_api/ids.py",
        "    return _UID.fullmatch(text) is not None",
        "    return _UID.match(text) is not None",
        "A claim's config writes outside of the plugin's directory.",
        (f"{_UNIT}/claims/test_plan.py", "packages/nvdra-api/tests/unit/test_ids.py"),
    ),
    Mutant(
        "channels: numbers of another driver",
        f"{_PLUGIN}/node/device_numbers.py",
        "        if name.strip() == driver and number.isdecimal():",
        "        if name.strip().startswith(driver) and number.isdecimal():",
        "A container gets a device node of another driver.",
        (f"{_UNIT}/node/test_device_numbers.py",),
    ),
)
