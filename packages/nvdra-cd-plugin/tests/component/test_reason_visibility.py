# SPDX-License-Identifier: Apache-2.0
"""Every reason is the same in the kubelet's text, Events, metrics, log and span."""

import pytest
from nvdra_api.errors import Reason
from nvdra_testing.failures import domain_provocations, reported_failures
from nvdra_testing.node.domain_rig import DomainRig


@pytest.mark.parametrize("reason", domain_provocations.PROVOCATIONS)
async def test_a_reason_is_the_same_in_all_five_places(rig: DomainRig, reason: Reason) -> None:
    told = await domain_provocations.PROVOCATIONS[reason](rig)
    await reported_failures.check_all_reports(rig, reason, told)


@pytest.mark.parametrize("lack", domain_provocations.NOT_READY_CAUSES)
async def test_what_the_nodes_daemon_lacks_is_reported_in_all_five_places(
    rig: DomainRig, lack: str
) -> None:
    provocation, words = domain_provocations.NOT_READY_CAUSES[lack]
    told = await provocation(rig)
    assert words in told.answer
    await reported_failures.check_all_reports(rig, Reason.DAEMON_NOT_READY, told)
