# SPDX-License-Identifier: Apache-2.0
"""The crash campaign: killed before any call that changes something, the plugin recovers.

After a start and the kubelet's retry the claim has what it must have, and after the unprepare the
node has nothing of it: no record, no CDI spec, no label. A usual run strikes each change of a CDI
spec and a few calls that `SEED=` draws, `--soak` strikes every call, and `--crash-report=FILE`
keeps the table of all outcomes.
"""

import pytest
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.crash_campaigns import golden_points, plugin_campaign, selection
from nvdra_testing.crash_campaigns.domain_operations import (
    DomainOperation,
    PrepareChannel,
    PrepareDaemon,
    UnprepareChannel,
    UnprepareDaemon,
)
from nvdra_testing.crash_campaigns.plugin_sandbox import DOMAIN_PLUGIN
from nvdra_testing.crash_campaigns.pytest_plugin import Campaigns


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "kind",
    [PrepareChannel, UnprepareChannel, PrepareDaemon, UnprepareDaemon],
    ids=lambda kind: kind.name,
)
async def test_after_a_kill_at_any_call_a_start_and_the_kubelets_retry_recover(
    kind: type[DomainOperation], server: ApiServer, campaigns: Campaigns
) -> None:
    namespace = domain_objects.create_namespace(server, "nvdra")
    selected = campaigns.select(golden_points.load("cd_plugin"), selection.FEW)
    flags = (f"--namespace={namespace}",)
    campaigns.check(
        await plugin_campaign.run_plugin_campaign(
            server, kind(namespace), selected, DOMAIN_PLUGIN, flags
        )
    )
