# SPDX-License-Identifier: Apache-2.0
"""Mutants of nvdra-api: the API server's client, the state file, claims, slices, locks."""

from typing import Final

from tests.mutants.mutant import Mutant

_RUNTIME: Final = "packages/nvdra-api/src/nvdra_runtime"
_API: Final = "packages/nvdra-api/src/nvdra_api"
_UNIT: Final = "packages/nvdra-api/tests/unit"
_COMPONENT: Final = "packages/nvdra-api/tests/component"

_TASKS: Final = (
    Mutant(
        "failures: a prepare that failed stands when its claim is gone",
        f"{_RUNTIME}/claims/service.py",
        "            self._failures.end(ref.uid)\n            return\n",
        "            return\n",
        "The status reports failures of claims that no longer exist.",
        (f"{_UNIT}/claims/test_service.py",),
    ),
    Mutant(
        "status: a failure stands however long ago it was",
        f"{_RUNTIME}/kubeletplugin/status_command.py",
        "_REPEATED_WITHIN_S = 300.0\n",
        "_REPEATED_WITHIN_S = 1e9\n",
        "The status reports failures of claims that no longer exist.",
        (f"{_UNIT}/kubeletplugin/test_status_command.py",),
    ),
    Mutant(
        "host: a directory without execution is good enough for the hook",
        f"{_RUNTIME}/kubeletplugin/cdi_hook.py",
        "    if os.statvfs(plugin_dir).f_flag & os.ST_NOEXEC:\n",
        "    if False:\n",
        "The plugin is ready, and no container with a device starts.",
        component=(f"{_COMPONENT}/test_cdi_hook.py",),
    ),
    Mutant(
        "proxy: networks in NO_PROXY are names",
        f"{_RUNTIME}/kube/proxy.py",
        "        network = ipaddress.ip_network(entry, strict=False)\n",
        "        network = ipaddress.ip_network('0.0.0.0/32')\n",
        "What is for the API server goes to the proxy.",
        (f"{_UNIT}/kube/test_proxy.py",),
    ),
    Mutant(
        "tasks: a failure ends the process",
        f"{_RUNTIME}/process/background_tasks.py",
        "            if name in ENDS_PROCESS:\n                raise\n",
        "            raise\n",
        "An object of a tenant restarts a component for as long as it exists.",
        (f"{_UNIT}/process/test_background_tasks.py",),
    ),
    Mutant(
        "tasks: a lost lease is repeated",
        f"{_RUNTIME}/process/background_tasks.py",
        "            if name in ENDS_PROCESS:\n                raise\n",
        "",
        "Two controllers lead, or two plugins prepare claims on one node.",
        (f"{_UNIT}/process/test_background_tasks.py",),
    ),
    Mutant(
        "tasks: a library's cancellation ends a task in silence",
        f"{_RUNTIME}/process/background_tasks.py",
        "            if _is_cancelled():\n                raise\n",
        "            raise\n",
        "What the task does is never done again, and nothing says so.",
        (f"{_UNIT}/process/test_background_tasks.py",),
    ),
    Mutant(
        "workqueue: a key that fails unexpectedly counts as done",
        f"{_RUNTIME}/kube/workqueue.py",
        "        if contained.error is not None:\n            return self._count_failure(known)\n",
        "",
        "A domain stays as it is after a bug until something changes.",
        (f"{_UNIT}/kube/test_workqueue.py",),
    ),
    Mutant(
        "events: an Event that cannot be written is tried for ever",
        f"{_RUNTIME}/kube/event_recorder.py",
        "would fail again, before all others\n                    self._aggregator.discard(key)\n",
        "would fail again, before all others\n",
        "A tenant's text keeps all other Events of the node from being written.",
        component=(
            f"{_COMPONENT}/test_poisoned_objects.py"
            "::test_an_event_that_cannot_be_written_is_dropped_and_others_are_written",
        ),
    ),
    Mutant(
        "informer: who missed a change by a failure never gets it",
        f"{_RUNTIME}/kube/informer.py",
        "            await self._wake_waiters(_REPEATED)\n",
        "            pass\n",
        "What has changed while a watch failed is not acted on.",
        component=(
            f"{_COMPONENT}/test_poisoned_objects.py"
            "::test_who_misses_a_change_by_a_failure_gets_it_when_the_informer_runs_again",
        ),
    ),
)

_KUBE: Final = (
    Mutant(
        "pages: a page says nothing of the next one",
        f"{_RUNTIME}/kube/page_limits.py",
        "    return max(1, min(fitting, _GROWTH * limit, MAX_LIMIT))\n",
        "    return max(1, min(_GROWTH * limit, MAX_LIMIT))\n",
        "Objects of 1.5 MB are read by hundreds.",
        (f"{_UNIT}/kube/test_page_limits.py",),
    ),
    Mutant(
        "pages: small objects lead to a page of any number",
        f"{_RUNTIME}/kube/page_limits.py",
        "    return max(1, min(fitting, _GROWTH * limit, MAX_LIMIT))\n",
        "    return max(1, fitting)\n",
        "One answer has thousands of objects.",
        (f"{_UNIT}/kube/test_page_limits.py",),
    ),
    Mutant(
        "pages: an answer of any length is read",
        f"{_RUNTIME}/kube/list_pages.py",
        "    return MAX_OBJECT_BYTES if limit == 1 else page_limits.MAX_BYTES\n",
        "    return MAX_LIST_BYTES\n",
        "Long objects after short ones fill the memory.",
        (f"{_UNIT}/kube/test_informer.py",),
    ),
    Mutant(
        "turns: a group goes on while it has items",
        f"{_RUNTIME}/kube/turns.py",
        "            self._groups[group] = items\n",
        "            self._groups = {group: items, **self._groups}\n",
        "A tenant with thousands of keys delays all others.",
        (f"{_UNIT}/kube/test_turns.py",),
    ),
    Mutant(
        "turns: the turn of a cancelled task is lost",
        f"{_RUNTIME}/kube/fair_slots.py",
        "            if turn.done() and not turn.cancelled():  # it has the slot already\n"
        "                self._release()\n",
        "",
        "Fewer and fewer keys are processed.",
        (f"{_UNIT}/kube/test_workqueue.py",),
    ),
    Mutant(
        "workqueue: all keys are of one group",
        f"{_RUNTIME}/kube/workqueue.py",
        "self._slots.hold(self._group_of(key))",
        'self._slots.hold("")',
        "A tenant with thousands of keys delays all others.",
        (f"{_UNIT}/kube/test_workqueue.py",),
    ),
    Mutant(
        "lease: a conflict counts as won",
        f"{_RUNTIME}/kube/leader_election.py",
        "            return False  # another process was faster",
        "            return True",
        "Two controllers lead and undo each other's writes.",
        (f"{_UNIT}/kube/test_leader_election.py",),
    ),
    Mutant(
        "lease: a leader that cannot renew leads on",
        f"{_RUNTIME}/kube/leader_election.py",
        "                self.lost.set()\n",
        "",
        "A controller that was cut off works beside its successor.",
        (f"{_UNIT}/kube/test_leader_election.py",),
    ),
    Mutant(
        "lease: another's lease is released",
        f"{_RUNTIME}/kube/leader_election.py",
        "            if self.holder != self.identity:\n                return\n",
        "",
        "A controller that ends takes the lease from the one that leads.",
        (f"{_UNIT}/kube/test_leader_election.py",),
    ),
    Mutant(
        "lease: a lease is acquired before it expires",
        f"{_RUNTIME}/kube/lease_record.py",
        "    return now >= observed.observed_at + duration_s",
        "    return now >= observed.observed_at + duration_s / 2",
        "Two controllers lead while the first one is slow.",
        (f"{_UNIT}/kube/test_lease_record.py",),
    ),
    Mutant(
        "lease: an unchanged lease counts as renewed",
        f"{_RUNTIME}/kube/lease_record.py",
        "        return replace(observed, lease=lease)\n",
        "        return ObservedLease(lease, now)\n",
        "Nobody ever follows a controller that was killed.",
        (f"{_UNIT}/kube/test_lease_record.py",),
    ),
    Mutant(
        "watch: HTTP 410 watches on",
        f"{_RUNTIME}/kube/informer.py",
        "        except Gone:\n            return WatchResult.RELIST",
        "        except Gone:\n            return WatchResult.UNCHANGED",
        "A watch is refused for ever, and nothing is noticed any more.",
        (f"{_UNIT}/kube/test_informer.py",),
        (
            f"{_COMPONENT}/test_list_and_watch.py"
            "::test_a_version_that_the_server_no_longer_keeps_is_listed_again",
        ),
    ),
    Mutant(
        "watch: 410 in the stream watches on",
        f"{_RUNTIME}/kube/informer_cache.py",
        '        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):\n'
        "            return WatchResult.RELIST",
        '        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):\n'
        "            return WatchResult.UNCHANGED",
        "What changed in the gap is never noticed.",
        (f"{_UNIT}/kube/test_informer.py", f"{_UNIT}/kube/test_informer_cache.py"),
    ),
    Mutant(
        "watch: a watch starts at once again",
        f"{_RUNTIME}/kube/informer.py",
        "            await asyncio.sleep(max(0.0, started + _MIN_WATCH_INTERVAL_S - clock()))",
        "            await asyncio.sleep(0.0)",
        "A proxy that ends each watch at once is asked thousands of times a second.",
        (f"{_UNIT}/kube/test_informer.py",),
    ),
    Mutant(
        "watch: bookmarks are not used",
        f"{_RUNTIME}/kube/informer_cache.py",
        '        self._resume_from(obj.get("metadata") or {})\n        return WatchResult.CHANGED',
        '        if kind != "BOOKMARK":\n'
        '            self._resume_from(obj.get("metadata") or {})\n'
        "        return WatchResult.CHANGED",
        "Quiet collections are listed again and again.",
        (f"{_UNIT}/kube/test_informer_cache.py", f"{_UNIT}/kube/test_informer.py"),
    ),
    Mutant(
        "watch: our own delete is not seen until the watch tells it",
        f"{_RUNTIME}/kube/informer_cache.py",
        '        self._deleted.add(obj["metadata"].get("uid", ""))\n',
        "",
        "What was just deleted is deleted again.",
        (f"{_UNIT}/kube/test_informer_cache.py",),
    ),
    Mutant(
        "errors: 403 counts as gone",
        f"{_RUNTIME}/kube/errors.py",
        "    if status == 404:\n",
        "    if status in (403, 404):\n",
        "A right that is missing for a minute unprepares claims that pods use.",
        (f"{_UNIT}/kube/test_errors.py",),
    ),
    Mutant(
        "errors: a proxy's 404 counts as gone",
        f"{_RUNTIME}/kube/errors.py",
        'return NotFound(message) if document.get("details") else NotServed(message)',
        "return NotFound(message)",
        "A proxy's page unprepares claims that pods use.",
        (f"{_UNIT}/kube/test_errors.py",),
    ),
    Mutant(
        "errors: 503 with Retry-After is not waited for",
        f"{_RUNTIME}/kube/errors.py",
        "    if status == 429 or (status == 503 and retry_after_s is not None):",
        "    if status == 429:",
        "An API server that starts is asked without a pause.",
        (f"{_UNIT}/kube/test_errors.py",),
    ),
    Mutant(
        "claim: one of the same name is taken for it",
        f"{_RUNTIME}/kube/client.py",
        "        if claim.metadata.uid != ref.uid:",
        "        if False:",
        "A pod gets the devices of another claim.",
        (f"{_UNIT}/kube/test_errors.py",),
    ),
    Mutant(
        "delete: no preconditions are sent",
        f"{_RUNTIME}/kube/client.py",
        '"preconditions": {key: value for key, value in conditions.items() if value},',
        '"preconditions": {},',
        "What somebody has made anew under the name is deleted.",
        (
            f"{_UNIT}/resourceslices/test_publisher.py",
            "packages/nvdra-cd-controller/tests/unit/test_object_writer.py",
        ),
    ),
    Mutant(
        "events: a refused Event is tried without ever longer pauses",
        f"{_RUNTIME}/kube/event_aggregation.py",
        "        wait_s = min(FIRST_RETRY_S * 2**known.failures, INTERVAL_S)",
        "        wait_s = FIRST_RETRY_S",
        "An API server that refuses Events is asked every two seconds by every component.",
        (f"{_UNIT}/kube/test_event_aggregation.py",),
    ),
    Mutant(
        "slices: a slice is deleted without its UID and version",
        f"{_RUNTIME}/resourceslices/publisher.py",
        '                    uid=metadata["uid"],\n'
        '                    resource_version=metadata["resourceVersion"],\n',
        "",
        "A slice that another instance has just written is deleted.",
        (f"{_UNIT}/resourceslices/test_publisher.py",),
    ),
    Mutant(
        "slices: no pause between repairs",
        f"{_RUNTIME}/resourceslices/publisher.py",
        "        await timeouts.wait_for_event(self._pool_changed, delay)\n",
        "        await timeouts.wait_for_event(self._pool_changed, 0.0)\n",
        "Two writers that disagree overwrite each other at full speed.",
        (f"{_UNIT}/resourceslices/test_publisher.py",),
    ),
    Mutant(
        "slices: the pause between repairs never starts anew",
        f"{_RUNTIME}/resourceslices/publisher.py",
        "        self._repairs = 1 if now - self._repaired_at > _REPAIR_RESET_S else "
        "self._repairs + 1",
        "        self._repairs = self._repairs + 1",
        "After some kubelet restarts the node is without devices for half a minute each time.",
        (f"{_UNIT}/resourceslices/test_publisher.py",),
    ),
    Mutant(
        "slices: a new pool waits as a repair does",
        f"{_RUNTIME}/resourceslices/publisher.py",
        "            if not is_new and self._state.is_published:",
        "            if True:",
        "A GPU that is lost is offered for seconds.",
        (f"{_UNIT}/resourceslices/test_publisher.py",),
    ),
    Mutant(
        "slices: an inconsistent pool is published",
        f"{_RUNTIME}/resourceslices/publisher.py",
        "        self._desired = None if problems else pool_diff.desired(pool)",
        "        self._desired = pool_diff.desired(pool)",
        "The scheduler ignores all devices of the node, and nothing says why.",
        (f"{_UNIT}/resourceslices/test_publisher.py",),
    ),
    Mutant(
        "slices: nobody is told that the API is not served",
        f"{_RUNTIME}/resourceslices/publisher.py",
        "        except DraDisabled as error:\n            self._observe_problem(error)\n",
        "        except DraDisabled:\n",
        "A cluster without DRA looks like a node without GPUs.",
        (f"{_UNIT}/resourceslices/test_publisher.py",),
    ),
    Mutant(
        "watch: changed keys are not told",
        f"{_RUNTIME}/kube/informer.py",
        "            self._on_change(changed)\n",
        "            pass\n",
        "The controller does not notice that anything has changed.",
        (f"{_UNIT}/kube/test_informer.py",),
    ),
    Mutant(
        "slices: no owner",
        f"{_RUNTIME}/resourceslices/publisher.py",
        "                made = pool_diff.with_node_owner(each, self._node, self._owner)\n",
        "                made = each\n",
        "Slices of nodes that are gone stay and pods are scheduled to them.",
        (f"{_UNIT}/resourceslices/test_publisher.py",),
    ),
    Mutant(
        "slices: the generation stays when several slices change",
        f"{_RUNTIME}/resourceslices/pool_diff.py",
        "    if missing or len(changed) > 1:",
        "    if missing:",
        "The scheduler mixes the old pool with the new one.",
        (f"{_UNIT}/resourceslices/test_pool_diff.py",),
    ),
    Mutant(
        "slices: taints lose their time",
        f"{_RUNTIME}/resourceslices/pool_diff.py",
        'taints.append({**taint, "timeAdded": added} if added else taint)',
        "taints.append(taint)",
        "Tolerations of a limited time begin anew with each change of a slice.",
        (f"{_UNIT}/resourceslices/test_pool_diff.py",),
    ),
    Mutant(
        "slices: those of a former Node are kept",
        f"{_RUNTIME}/resourceslices/pool_diff.py",
        "        is_current = generation(each) == latest and (not owner or _is_owned(each, owner))",
        "        is_current = generation(each) == latest",
        "The garbage collector removes the devices of a node that was registered anew.",
        (f"{_UNIT}/resourceslices/test_pool_diff.py",),
    ),
)

_STATE: Final = (
    Mutant(
        "state: synchronous=OFF",
        f"{_RUNTIME}/node/record_database.py",
        '    connection.execute("PRAGMA synchronous = FULL")\n    verdict',
        '    connection.execute("PRAGMA synchronous = OFF")\n    verdict',
        "After a power failure a GPU that a pod uses is given to another pod.",
        component=(f"{_COMPONENT}/test_synced_files.py",),
    ),
    Mutant(
        "state: synchronous=NORMAL",
        f"{_RUNTIME}/node/record_database.py",
        '    connection.execute("PRAGMA synchronous = FULL")\n    verdict',
        '    connection.execute("PRAGMA synchronous = NORMAL")\n    verdict',
        "After a power failure a GPU that a pod uses is given to another pod.",
        component=(f"{_COMPONENT}/test_synced_files.py",),
    ),
    Mutant(
        "state: a new file is not synced",
        f"{_RUNTIME}/node/record_database.py",
        '        connection.execute("PRAGMA synchronous = FULL")\n'
        "        connection.executescript(_SCHEMA)",
        '        connection.execute("PRAGMA synchronous = OFF")\n'
        "        connection.executescript(_SCHEMA)",
        "After a power failure the state file is empty, and no device is given away.",
        component=(f"{_COMPONENT}/test_synced_files.py",),
    ),
    Mutant(
        "state: the directory of a new file is not synced",
        f"{_RUNTIME}/node/record_database.py",
        "    new.replace(path)\n    files.fsync_directory(path.parent)\n",
        "    new.replace(path)\n",
        "After a power failure the state file is gone.",
        component=(f"{_COMPONENT}/test_synced_files.py",),
    ),
    Mutant(
        "files: a replaced file is not synced",
        f"{_RUNTIME}/node/files.py",
        "            if is_synced:\n                os.fsync(file.fileno())\n",
        "",
        "After a power failure a file is empty.",
        component=(f"{_COMPONENT}/test_synced_files.py",),
    ),
    Mutant(
        "files: the directory of a replaced file is not synced",
        f"{_RUNTIME}/node/files.py",
        "    if is_synced:\n        fsync_directory(path.parent)\n",
        "",
        "After a power failure a file is the old one.",
        component=(f"{_COMPONENT}/test_synced_files.py",),
    ),
    Mutant(
        "state: doubt is marked after the move",
        f"{_RUNTIME}/node/record_database.py",
        "    _write_recovery_marker(path, aside, boot_id)\n"
        "    if path.exists():\n"
        "        path.replace(aside)\n",
        "    if path.exists():\n"
        "        path.replace(aside)\n"
        "    _write_recovery_marker(path, aside, boot_id)\n",
        "After a crash in between, GPUs that pods use are given to others.",
        (f"{_UNIT}/node/test_record_database.py",),
    ),
    Mutant(
        "state: a stale log stays beside a new file",
        f"{_RUNTIME}/node/record_database.py",
        "    for log in _wal_files(path):  # of a removed file; SQLite would replay them into the "
        "new one\n"
        "        log.unlink(missing_ok=True)\n",
        "",
        "Claims of an earlier file hold GPUs, or the new file is damaged.",
        (f"{_UNIT}/node/test_record_database.py",),
    ),
    Mutant(
        "state: healing loses the roots",
        f"{_RUNTIME}/node/record_store.py",
        "            *(\n"
        "                record_database.put_root_span(uid, forget)\n"
        "                for uid, forget in self._root_spans.items()\n"
        "            ),\n",
        "",
        "Traces get a second root after the next start.",
        (f"{_UNIT}/node/test_record_database.py",),
    ),
    Mutant(
        "state: a healed file is healed with every change",
        f"{_RUNTIME}/node/record_store.py",
        "        self._file_identity = opened.file_identity\n        with suppress(",
        "        with suppress(",
        "Each claim rewrites the whole state file and leaves a copy, until the disk is full.",
        (f"{_UNIT}/node/test_record_database.py",),
    ),
    Mutant(
        "state: roots are never forgotten",
        f"{_RUNTIME}/node/record_store.py",
        "        last = self._forget_root_spans(now)\n",
        "        last = None\n",
        "A plugin's memory and its state file grow with every claim.",
        (f"{_UNIT}/node/test_record_store.py",),
    ),
    Mutant(
        "state: a mark after a change is not written",
        f"{_RUNTIME}/node/record_store.py",
        "            self._flush_timer.cancel()\n            self._flush_timer = None\n",
        "            self._flush_timer.cancel()\n",
        "Traces get a second root after the next start.",
        (f"{_UNIT}/node/test_record_store.py",),
    ),
    Mutant(
        "state: changes that failed stay open",
        f"{_RUNTIME}/node/record_database.py",
        '                connection.execute("ROLLBACK")\n',
        "                pass\n",
        "After one failed change nothing can be prepared any more.",
        (f"{_UNIT}/node/test_record_database.py",),
    ),
    Mutant(
        "state: a file in its place is overwritten",
        f"{_RUNTIME}/node/record_database.py",
        "        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)\n"
        "        _move_corrupt_file(path, boot_id, now)\n",
        "        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)\n",
        "Nobody can find out what had happened to the state file.",
        (f"{_UNIT}/node/test_record_database.py",),
    ),
    Mutant(
        "state: healing loses the batch",
        f"{_RUNTIME}/node/record_store.py",
        "            *(statement for change in batch.changes for statement in "
        "change.statements),\n",
        "",
        "A claim that was answered as prepared has no record.",
        (f"{_UNIT}/node/test_record_database.py",),
    ),
    Mutant(
        "state: a removed file is written on",
        f"{_RUNTIME}/node/record_database.py",
        "    if _file_identity(path) != file_identity:",
        "    if False:",
        "Records go into a file that nobody will read.",
        (f"{_UNIT}/node/test_record_database.py",),
    ),
    Mutant(
        "state: a doubt outlives its boot",
        f"{_RUNTIME}/node/record_database.py",
        "    if found.boot_id != boot_id:\n"
        "        remove_recovery_marker(found)\n"
        "        return None\n",
        "",
        "A rebooted node gives no device away until somebody removes a file.",
        (f"{_UNIT}/node/test_record_database.py",),
    ),
    Mutant(
        "state: a failed write is remembered",
        f"{_RUNTIME}/node/record_store.py",
        "            self.problem = str(failure)\n            batch.resolve(failure)",
        "            self.problem = str(failure)\n"
        "            for change in batch.changes:\n"
        "                change.apply()\n"
        "            batch.resolve(failure)",
        "Memory and disk disagree on who holds a GPU.",
        (f"{_UNIT}/node/test_record_store.py",),
    ),
    Mutant(
        "state: each change has a commit of its own",
        f"{_RUNTIME}/node/record_store.py",
        "        if self._is_idle.is_set():\n"
        "            self._start_batch()\n"
        "        await written",
        "        self._start_batch()\n        await written",
        "Eight claims at once wait for eight fsyncs.",
        (f"{_UNIT}/node/test_record_store.py",),
    ),
    Mutant(
        "state: others may read the file",
        f"{_RUNTIME}/node/record_database.py",
        "os.O_EXCL | os.O_CLOEXEC, 0o600",
        "os.O_EXCL | os.O_CLOEXEC, 0o644",
        "Users of the node read which tenant has which GPU.",
        (f"{_UNIT}/node/test_record_store.py",),
    ),
    Mutant(
        "lock: a second instance starts",
        f"{_RUNTIME}/node/instance_lock.py",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "Two plugins give the same GPU to two pods.",
        (f"{_UNIT}/node/test_instance_lock.py",),
    ),
)

_CLAIMS: Final = (
    Mutant(
        "claims: the share of a device is dropped from the answer",
        f"{_RUNTIME}/claims/records.py",
        "                    share_id=device.share_id,\n",
        "",
        "The kubelet takes one share of a device for another.",
        (
            "packages/nvdra-gpu-plugin/tests/unit/claims/test_plan_of_several_devices.py",
            "packages/nvdra-cd-plugin/tests/unit/claims/test_record_writer.py",
        ),
    ),
    Mutant(
        "claims: those of other drivers are adopted",
        f"{_RUNTIME}/claims/record_recovery.py",
        "            if uid not in self._prepared_claims and claim.devices(self._driver)",
        "            if uid not in self._prepared_claims and claim.drivers",
        "After damage of the state file, claims of other drivers are recorded for ever.",
        (f"{_UNIT}/claims/test_record_recovery.py",),
    ),
    Mutant(
        "claims: records are in memory before they are on the disk",
        f"{_RUNTIME}/claims/prepared_claims.py",
        "        stored = await self._store.put(ref, state, claim_record.model_dump_json())\n"
        "        self._uncount(ref.uid)\n",
        "        self._uncount(ref.uid)\n"
        "        self._index.put(claim_record)\n"
        "        stored = await self._store.put(ref, state, claim_record.model_dump_json())\n"
        "        self._index.remove(ref.uid)\n",
        "A GPU is held by a claim whose record could not be written.",
        explained="Nothing looks between the two: the GPU's lock is held until the write is done, "
        "and a failed write raises. Kept as a warning to whoever reads without the lock.",
    ),
    Mutant(
        "claims: a waiter is not woken",
        f"{_RUNTIME}/claims/prepared_claims.py",
        "                waiter.set_result(None)\n",
        "                pass\n",
        "A pod that waits for a GPU starts only at the kubelet's next call.",
        (f"{_UNIT}/claims/test_prepared_claims.py",),
    ),
    Mutant(
        "stale claims: any permanent error counts as gone",
        f"{_RUNTIME}/claims/stale_claims.py",
        "            if error.reason in _NOT_FOUND_REASONS:\n                return error.message\n"
        "            raise",
        "            return error.message",
        "Claims that pods use are unprepared.",
        (f"{_UNIT}/claims/test_stale_claims.py",),
    ),
    Mutant(
        "stale claims: pods are not looked for",
        f"{_RUNTIME}/claims/stale_claims.py",
        "        return bool(users)",
        "        return False",
        "The GPU of a pod that was deleted by force is given away while its containers run.",
        (f"{_UNIT}/claims/test_stale_claims.py",),
    ),
    Mutant(
        "stale claims: an unreadable checkpoint means unused",
        f"{_RUNTIME}/claims/stale_claims.py",
        "                error=str(error),\n            )\n            return True",
        "                error=str(error),\n            )\n            return False",
        "The GPU of a running pod is given away when the kubelet's file is damaged.",
        (f"{_UNIT}/claims/test_stale_claims.py",),
    ),
    Mutant(
        "checkpoint: its checksum is not compared",
        f"{_RUNTIME}/claims/kubelet_checkpoint.py",
        "    if zlib.crc32(data) != checkpoint.checksum:",
        "    if False:",
        "Half a file is taken for the truth about which claims are used.",
        (f"{_UNIT}/claims/test_kubelet_checkpoint.py",),
    ),
    Mutant(
        "checkpoint: directories of pods are not looked at",
        f"{_RUNTIME}/claims/kubelet_checkpoint.py",
        "        for pod in pods:",
        "        for pod in ():",
        "A GPU is given away while a container of its pod still runs.",
        (f"{_UNIT}/claims/test_kubelet_checkpoint.py",),
    ),
    Mutant(
        "configs: a gate that was enabled just now is asked for again",
        f"{_RUNTIME}/claims/opaque_configs.py",
        '(if it was enabled just now, wait "\n',
        '(wait "\n',
        "A user asks the administrator for what they have done a second ago.",
        (f"{_UNIT}/claims/test_opaque_configs.py",),
    ),
    Mutant(
        "configs: an earlier config wins",
        f"{_RUNTIME}/claims/opaque_configs.py",
        "key=lambda item: (item[0], item[1].index))][::-1]",
        "key=lambda item: (-item[0], item[1].index))]",
        "The DeviceClass overrides what the claim asks for.",
        (f"{_UNIT}/claims/test_opaque_configs.py",),
    ),
    Mutant(
        "wait: those who came later are served first",
        f"{_RUNTIME}/process/locks.py",
        "            next_waiter = held.queue.popleft()",
        "            next_waiter = held.queue.pop()",
        "A pod waits for a GPU while later ones get it.",
        (f"{_UNIT}/process/test_locks.py", f"{_UNIT}/claims/test_device_wait_queue.py"),
    ),
    Mutant(
        "wait: locks are acquired in the order of the request",
        f"{_RUNTIME}/process/locks.py",
        "        self._keys = sorted(set(keys))",
        "        self._keys = list(dict.fromkeys(keys))",
        "Two claims for the same two GPUs block each other until their deadlines.",
        (f"{_UNIT}/process/test_locks.py",),
    ),
    Mutant(
        "single flight: an unprepare joins a prepare",
        f"{_RUNTIME}/process/single_flight.py",
        "        return queue[-1] if queue and queue[-1].kind == kind else None",
        "        return queue[-1] if queue else None",
        "A claim that is unprepared while it is prepared stays prepared.",
        (f"{_UNIT}/process/test_single_flight.py", f"{_UNIT}/claims/test_service.py"),
    ),
    Mutant(
        "roots: what waits at the end is lost",
        f"{_RUNTIME}/claims/root_spans.py",
        "        yield writer\n    writer.flush()\n",
        "        yield writer\n",
        "The traces of the last claims before a restart have no root.",
        (f"{_UNIT}/claims/test_root_spans.py",),
        (
            "packages/nvdra-gpu-plugin/tests/component/test_claim_traces.py"
            "::test_spans_that_wait_for_a_pod_when_the_plugin_ends_are_written_before_it_has",
        ),
    ),
    Mutant(
        "roots: one is written for each attempt",
        f"{_RUNTIME}/claims/root_spans.py",
        "        self._store.mark_root_span_written(uid)\n",
        "",
        "A trace has many roots of the same name.",
        (f"{_UNIT}/claims/test_root_spans.py",),
    ),
    Mutant(
        "restorer: a removed file is restored once",
        f"{_RUNTIME}/kubeletplugin/file_restorer.py",
        "        while True:\n            await asyncio.sleep(_INTERVAL_S)",
        "        for _ in range(1):\n            await asyncio.sleep(_INTERVAL_S)",
        "A CDI spec that is removed twice stays away, and pods do not start.",
        (f"{_UNIT}/kubeletplugin/test_file_restorer.py",),
    ),
)

_TYPES: Final = (
    Mutant(
        "json text: what exceeds a bound in one object refuses the list",
        f"{_API}/json_text.py",
        "        return _parse_repaired(_valid(data))\n",
        "        raise\n",
        "One user's object takes the list of all objects from the controller.",
        (f"{_UNIT}/test_json_text.py",),
    ),
    Mutant(
        "json text: a short text with escaped surrogates is not looked at",
        f"{_API}/json_text.py",
        'if not is_shallow or b"\\\\u" in data:',
        "if not is_shallow:",
        "A lone surrogate in a config ends the plugin.",
        (f"{_UNIT}/test_decoding.py",),
    ),
    Mutant(
        "configs: a wrong type is named without what to write",
        "packages/nvdra-api/src/nvdra_api/decoding.py",
        '        remedy=_REMEDIES.get(expected, ""),\n',
        "",
        'Who writes "50" in quotes is told of an integer, and not how to write one.',
        (f"{_UNIT}/test_decoding.py",),
    ),
    Mutant(
        "errors: a text is as it was found",
        f"{_API}/errors.py",
        "    return texts.encodable(texts.shortened(text, MAX_MESSAGE))\n",
        "    return text\n",
        "An Event or an answer that quotes a file's name cannot be sent.",
        (f"{_UNIT}/test_errors.py",),
    ),
    Mutant(
        "quantity: a binary suffix counts in thousands",
        f"{_API}/quantity.py",
        "            nano = digits * 1024 ** _BINARY[suffix] * _NANO\n",
        "            nano = digits * 1000 ** _BINARY[suffix] * _NANO\n",
        "The memory of a GPU is compared wrongly.",
        (f"{_UNIT}/test_quantity.py",),
    ),
    Mutant(
        "imex: INITIALIZING with exit code 0 counts as ready",
        f"{_RUNTIME}/computedomain/imex_ctl.py",
        "    if code == 0 and output == READY_OUTPUT:",
        "    if code == 0:",
        "Workloads start before their domain is formed, and fail.",
        (f"{_UNIT}/computedomain/test_imex_ctl.py",),
    ),
    Mutant(
        "configs: an unknown kind is refused without the kinds that there are",
        "packages/nvdra-api/src/nvdra_api/decoding.py",
        "    with _naming_kinds(driver):\n        return _accepted(driver, CONFIGS.decode(",
        "    if driver:\n        return _accepted(driver, CONFIGS.decode(",
        "The Event of a claim with the group of an older driver says nothing to do.",
        (f"{_UNIT}/test_decoding.py",),
    ),
    Mutant(
        "helm test: a Deployment says nothing of pods that are refused",
        f"{_RUNTIME}/installation/findings.py",
        'condition.get("type") == "ReplicaFailure" and condition.get("status") == "True"',
        'condition.get("type") == "ReplicaFailed" and condition.get("status") == "True"',
        "Where a quota keeps the controller away, the test says to read the log of no pod.",
        (f"{_UNIT}/installation/test_findings.py",),
    ),
    Mutant(
        "daemon pods: an earlier container's words count for the next one",
        f"{_RUNTIME}/computedomain/daemon_pods.py",
        "    if _PROCESS_START_S[0] <= after_s <= _PROCESS_START_S[1]:\n",
        "    if after_s:\n",
        "After a reboot a domain is Ready before its IMEX runs.",
        (f"{_UNIT}/computedomain/test_daemon_pods.py",),
    ),
    Mutant(
        "daemon pods: a pod that is being deleted counts as current",
        f"{_RUNTIME}/computedomain/daemon_pods.py",
        '        is_terminating=bool(metadata.get("deletionTimestamp")),',
        "        is_terminating=False,",
        "A domain is Ready by the word of a daemon that is gone.",
        (f"{_UNIT}/computedomain/test_daemon_pods.py",),
    ),
)

MUTANTS: Final = (*_TASKS, *_KUBE, *_STATE, *_CLAIMS, *_TYPES)
