"""Each reason on purpose: the kubelet's text, Events, metric, log and span say the same word."""

import domain_provoking
import pytest
import telling
from domain_rig import DomainRig
from nvdra_api.types.errors import Reason


@pytest.mark.parametrize("reason", domain_provoking.PROVOCATIONS)
async def test_a_reason_is_the_same_word_in_all_five_places(rig: DomainRig, reason: Reason) -> None:
    told = await domain_provoking.PROVOCATIONS[reason](rig)
    await telling.is_told_everywhere(rig, reason, told)


@pytest.mark.parametrize("lack", domain_provoking.LACKS)
async def test_what_the_nodes_daemon_lacks_is_told_in_all_five_places(
    rig: DomainRig, lack: str
) -> None:
    provocation, words = domain_provoking.LACKS[lack]
    told = await provocation(rig)
    assert words in told.answer
    await telling.is_told_everywhere(rig, Reason.DAEMON_NOT_READY, told)
