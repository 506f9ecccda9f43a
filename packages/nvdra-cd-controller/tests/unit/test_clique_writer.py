# SPDX-License-Identifier: Apache-2.0
"""A write of a clique takes nothing from it that the controller does not know."""

from typing import Any

import pytest
from nvdra_api.meta import JsonObject
from nvdra_api.v1beta1 import ComputeDomainClique
from nvdra_cd_controller import kept_parts
from nvdra_cd_controller.clique_writer import CONFLICT_RETRY_S, CliqueWriter, CliqueWriterResult
from nvdra_cd_controller.domain_snapshot import DomainSnapshot
from nvdra_cd_controller.informers import DomainInformers
from nvdra_cd_controller.metrics import DomainMetrics
from nvdra_cd_controller.object_writer import ObjectWriter
from nvdra_runtime.computedomain.announcements import Announcement
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.telemetry.instrumentation import Telemetry
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder
from nvdra_testing import virtual_time
from nvdra_testing.control_plane import domain_objects, domain_values
from nvdra_testing.control_plane.domain_values import CLIQUE, UID
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

PATH = f"/apis/resource.nvidia.com/v1beta1/namespaces/nvdra/computedomaincliques/{UID}.{CLIQUE}"


def clique(version: str, *entries: JsonObject) -> JsonObject:
    made = domain_objects.clique(UID, *entries)
    made["metadata"] |= {"namespace": "nvdra", "uid": "c", "resourceVersion": version}
    return made


def entry(node: str, index: int, **more: Any) -> JsonObject:
    return domain_objects.clique_entry(node, index, **more)


STALE = entry("gone", 1)
KNOWN, EXTENDED = entry("a", 0), entry("a", 0, addedLater={"by": "a later version"})
JOINED = domain_values.daemon_pod("b", clique=CLIQUE, announcement=Announcement("10.4.0.9"))


def written(stored: JsonObject, now: JsonObject) -> tuple[CliqueWriterResult, RecordedApi]:
    """What a controller does that knows one version, while the server has another."""
    kept = kept_parts.of_clique(stored)
    snapshot = DomainSnapshot(
        UID,
        domain_values.domain(),
        domain_values.domain_json(),
        cliques=(ComputeDomainClique.model_validate(kept),),
        clique_objects=(kept,),
        pods=(domain_values.daemon_pod("a"), JOINED),
    )

    def answer(request: Request) -> Answer:
        return 200, now

    async def main() -> tuple[CliqueWriterResult, RecordedApi]:
        api = RecordedApi(answer)
        informers = DomainInformers(
            api, ["nvdra"], lambda _: None, lambda _: None, is_host_managed=False
        )
        telemetry = Telemetry(SystemClock(), DomainMetrics().process, TraceRecorder())
        writer = CliqueWriter(ObjectWriter(api, informers), telemetry)
        return await writer.write(snapshot, 18), api

    result: tuple[CliqueWriterResult, RecordedApi] = virtual_time.run_with_virtual_time(main)
    return result


@pytest.mark.parametrize(("known", "reads"), [(KNOWN, 0), (EXTENDED, 1)])
def test_an_entry_keeps_fields_of_a_later_version(known: JsonObject, reads: int) -> None:
    stored = clique("8", known, STALE)
    result, api = written(stored, stored)
    assert result == (None, None)
    assert len(api.lines("GET")) == reads
    sent = api.sent(f"PATCH {PATH}").body
    assert sent["metadata"]["resourceVersion"] == "8"
    first, second = sent["daemons"]
    assert first == known
    assert second["nodeName"] == "b"


def test_what_another_one_has_written_meanwhile_is_not_written_again() -> None:
    complete = written(clique("8", EXTENDED), clique("8", EXTENDED))[1].sent(f"PATCH {PATH}").body
    now = clique("9", *complete["daemons"])
    now["metadata"]["ownerReferences"] = complete["metadata"]["ownerReferences"]
    result, api = written(clique("8", EXTENDED), now)
    assert result == (CONFLICT_RETRY_S, None)
    assert api.lines() == [f"GET {PATH}"]
