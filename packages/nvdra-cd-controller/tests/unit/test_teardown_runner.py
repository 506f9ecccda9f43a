# SPDX-License-Identifier: Apache-2.0
"""A teardown of thousands of objects takes the client's rate limit from no other domain."""

import asyncio
from typing import Any

from nvdra_api import names
from nvdra_cd_controller.domain_snapshot import TEMPLATE, Child, DomainSnapshot
from nvdra_cd_controller.informers import DomainInformers
from nvdra_cd_controller.object_writer import ObjectWriter
from nvdra_cd_controller.teardown_runner import TeardownResult, TeardownRunner
from nvdra_testing import virtual_time
from nvdra_testing.control_plane.domain_values import UID
from nvdra_testing.faults.recorded_api import RecordedApi


class SlowApi(RecordedApi):
    """Answers each request after a second; knows how many it has at most at once."""

    in_progress = most = 0

    async def _call(self, *args: Any, **more: Any) -> bytes:
        self.in_progress += 1
        self.most = max(self.most, self.in_progress)
        await asyncio.sleep(1)
        self.in_progress -= 1
        return await super()._call(*args, **more)


def template(number: int) -> Child:
    labels = {names.DOMAIN_LABEL: UID}
    metadata = {"name": f"t{number}", "namespace": "team-a", "uid": f"u{number}", "labels": labels}
    return Child(TEMPLATE, {"kind": TEMPLATE, "metadata": {**metadata, "resourceVersion": "5"}})


def test_the_actions_of_a_step_are_performed_a_few_at_a_time() -> None:
    snapshot = DomainSnapshot(UID, workload_templates=tuple(map(template, range(40))))

    async def main() -> tuple[TeardownResult, SlowApi]:
        api = SlowApi(lambda _: (200, {}))
        informers = DomainInformers(
            api, ["nvdra"], lambda _: None, lambda _: None, is_host_managed=False
        )
        return await TeardownRunner(informers, ObjectWriter(api, informers)).run(snapshot), api

    result, api = virtual_time.run_with_virtual_time(main)
    assert not result.is_stuck
    assert len(api.lines("DELETE")) == 40
    assert api.most == 4
