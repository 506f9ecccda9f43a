# SPDX-License-Identifier: Apache-2.0
"""Writes the cliques of domains: who has joined, who is ready, who is gone.

`clique_plan` says what a clique should contain, `write_pace` when it may be written again. A write
that meets another one's is computed again from what is stored then, on the next reconciliation.
"""

import asyncio
from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

from nvdra_api.errors import DriverError
from nvdra_api.ids import CliqueID, DomainUID, NodeName
from nvdra_api.meta import JsonObject
from nvdra_api.v1beta1 import ComputeDomainClique
from nvdra_runtime.kube.errors import Conflict
from nvdra_runtime.telemetry import logs
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.metrics.process_metrics import ProcessMetrics

from nvdra_cd_controller import clique_plan, kept_parts, members
from nvdra_cd_controller.clique_plan import CliqueInputs
from nvdra_cd_controller.domain_snapshot import DomainSnapshot
from nvdra_cd_controller.object_writer import ObjectWriter
from nvdra_cd_controller.write_pace import WritePace

LOG = logs.logger(__name__)

CONFLICT_RETRY_S = 0.1
"""Until a clique is planned again that was changed by others; the watch usually comes first."""


class CliqueWriterResult(NamedTuple):
    """What a pass over a domain's cliques has left to do.

    Attributes:
        due_in_s: Seconds until the next pass is necessary; None if it is not.
        failure: Why a clique could not be written, other than by a conflict; the others are.
    """

    due_in_s: float | None
    failure: DriverError | None


class CliqueWriter:
    """Writes the cliques of one controller's domains."""

    def __init__(self, writer: ObjectWriter, telemetry: Telemetry[ProcessMetrics]) -> None:
        self._writer = writer
        self._telemetry = telemetry
        self._paces: dict[DomainUID, dict[CliqueID, WritePace]] = {}
        self._drops_unknown_fields = False

    async def write(self, snapshot: DomainSnapshot, max_nodes: int) -> CliqueWriterResult:
        """Write each clique of the domain that is not as it should be and may be written now."""
        dues, failures = list[float](), list[DriverError]()
        for inputs in self._inputs(snapshot, max_nodes):
            change = clique_plan.desired(inputs)
            if change is None:
                continue
            due_s = self._due_in_s(snapshot, inputs, change)
            if due_s == 0.0:
                try:
                    if await self._write(snapshot.uid, inputs, change):
                        continue
                    due_s = CONFLICT_RETRY_S
                except DriverError as error:
                    failures.append(error)
                    continue
            dues.append(due_s)
        return CliqueWriterResult(min(dues, default=None), next(iter(failures), None))

    def forget(self, uid: DomainUID) -> None:
        """Forget a deleted domain."""
        self._paces.pop(uid, None)

    def _inputs(self, snapshot: DomainSnapshot, max_nodes: int) -> list[CliqueInputs]:
        announced = clique_plan.announced(snapshot.pods)
        missing = dict(announced)
        by_node: dict[NodeName, list[ComputeDomainClique]] = defaultdict(list)
        for model in snapshot.cliques:
            for entry in model.daemons:
                by_node[entry.node_name].append(model)
        inputs = []
        for model, stored in zip(snapshot.cliques, snapshot.clique_objects, strict=True):
            clique = clique_plan.clique_of(model.metadata.name, snapshot.uid)
            said = missing.pop((model.metadata.namespace, clique), ())
            if model.metadata.deletion_timestamp is not None:
                continue  # it is made again once it is gone
            nodes = {entry.node_name for entry in model.daemons}
            others = [other for node in nodes for other in by_node[node] if other is not model]
            stale = members.stale_entries(model, others, snapshot.pods, snapshot.nodes)
            inputs.append(
                CliqueInputs(
                    snapshot.uid,
                    clique,
                    model.metadata.namespace,
                    stored,
                    said,
                    clique_plan.elsewhere(announced, clique).union(stale),
                    max_nodes,
                    self._drops_unknown_fields,
                )
            )
        new = (
            CliqueInputs(snapshot.uid, clique, namespace, None, said, max_nodes=max_nodes)
            for (namespace, clique), said in missing.items()
        )
        return [*inputs, *new]

    def _due_in_s(
        self, snapshot: DomainSnapshot, inputs: CliqueInputs, change: JsonObject
    ) -> float:
        pace = self._pace(inputs)
        is_settled = clique_plan.is_settled(inputs, snapshot.pods, snapshot.nodes)
        now = asyncio.get_running_loop().time()
        return pace.due_in_s(now, len(change["daemons"]), is_settled=is_settled)

    async def _write(self, uid: DomainUID, inputs: CliqueInputs, change: JsonObject) -> bool:
        """Write a clique. Returns False if it was written meanwhile."""
        with self._telemetry.step("write clique"):
            try:
                complete = await self._complete(inputs, change)
                if complete is None:
                    return False
                stored = await self._writer.write_clique(complete, is_new=inputs.stored is None)
            except Conflict as error:
                LOG.v(4, "Another one has written the clique", error=str(error))
                return False
        now = asyncio.get_running_loop().time()
        self._paces.setdefault(uid, {})[inputs.clique] = self._pace(inputs).after_write(now)
        if any(each.get("podUID") for each in change["daemons"]):
            entries = stored.get("daemons") or ()
            self._drops_unknown_fields = not any(entry.get("podUID") for entry in entries)
        return True

    async def _complete(self, inputs: CliqueInputs, change: JsonObject) -> JsonObject | None:
        """The change with the entries' fields that are not kept, which a write would remove.

        None if nothing is to be changed any more: another one has.
        """
        if inputs.stored is None or not kept_parts.is_partial(inputs.stored):
            return change
        whole = await self._writer.whole_clique(inputs.stored)
        return clique_plan.desired(replace(inputs, stored=whole))

    def _pace(self, inputs: CliqueInputs) -> WritePace:
        return self._paces.get(inputs.domain, {}).get(inputs.clique, WritePace())
