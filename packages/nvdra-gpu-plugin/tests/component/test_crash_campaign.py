# SPDX-License-Identifier: Apache-2.0
"""The crash campaign: killed before any call that changes something, the plugin recovers.

The calls are recorded from an undisturbed run in the same test and compared with the golden list of
`nvdra_testing.crash_campaigns.golden_points`. A selected call that no run died at fails the test.
`SEED=` repeats a selection, `--soak` selects every call, and `--crash-report=FILE` keeps
the table of all outcomes.
"""

import pytest
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.crash_campaigns import (
    golden_points,
    hardware_strikes,
    plugin_campaign,
    selection,
)
from nvdra_testing.crash_campaigns.hardware_strikes import HardwareCall
from nvdra_testing.crash_campaigns.plugin_operations import (
    FirstStart,
    Operation,
    Prepare,
    StartAfterKill,
    Unprepare,
)
from nvdra_testing.crash_campaigns.plugin_sandbox import DIVIDING_GPU_PLUGIN
from nvdra_testing.crash_campaigns.pytest_plugin import Campaigns
from nvdra_testing.crash_campaigns.step_operations import (
    FLAGS,
    GPU_IN_MIG_MODE,
    GPU_WITH_DAEMON,
    MIG_DEVICE,
    MIG_DEVICE_WITH_DAEMON,
    SHARED_GPU,
    PrepareWithDaemon,
    PrepareWithSteps,
    StartAfterKilledPrepare,
    StartAfterKilledPrepareWithDaemon,
    StartAfterReboot,
    StartAfterRebootWithDaemon,
    UnprepareWithDaemon,
    UnprepareWithSteps,
)

WITH_STEPS = (
    PrepareWithSteps(MIG_DEVICE),
    UnprepareWithSteps(MIG_DEVICE),
    StartAfterKilledPrepare(MIG_DEVICE),
    StartAfterReboot(MIG_DEVICE),
    PrepareWithSteps(GPU_IN_MIG_MODE),
    PrepareWithSteps(SHARED_GPU),
    UnprepareWithSteps(SHARED_GPU),
    PrepareWithDaemon(GPU_WITH_DAEMON),
    UnprepareWithDaemon(GPU_WITH_DAEMON),
)
"""Each kind of step, done and undone."""
OTHERS_WITH_STEPS = (
    UnprepareWithSteps(GPU_IN_MIG_MODE),
    PrepareWithDaemon(MIG_DEVICE_WITH_DAEMON),
    UnprepareWithDaemon(MIG_DEVICE_WITH_DAEMON),
    StartAfterReboot(SHARED_GPU),
    StartAfterRebootWithDaemon(GPU_WITH_DAEMON),
    StartAfterKilledPrepare(SHARED_GPU),
    StartAfterKilledPrepareWithDaemon(GPU_WITH_DAEMON),
)


@pytest.mark.protocol("P32")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(FirstStart, marks=pytest.mark.soak),
        pytest.param(StartAfterKill, marks=pytest.mark.soak),
        Prepare,
        Unprepare,
    ],
    ids=lambda kind: kind.name,
)
async def test_after_a_kill_at_any_call_a_start_and_the_kubelets_retry_recover(
    kind: type[Operation], server: ApiServer, campaigns: Campaigns
) -> None:
    selected = campaigns.select(golden_points.load("gpu_plugin"))
    campaigns.check(await plugin_campaign.run_plugin_campaign(server, kind(), selected))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "operation",
    [*WITH_STEPS, *(pytest.param(each, marks=pytest.mark.soak) for each in OTHERS_WITH_STEPS)],
    ids=lambda operation: operation.name,
)
async def test_killed_while_it_changes_hardware_the_plugin_ends_it_or_undoes_it(
    operation: Operation, server: ApiServer, campaigns: Campaigns
) -> None:
    selected = campaigns.select(golden_points.load("gpu_plugin"), selection.STEPS)
    campaigns.check(
        await plugin_campaign.run_plugin_campaign(
            server, operation, selected, DIVIDING_GPU_PLUGIN, FLAGS
        )
    )


MODE, TIME_SLICE = "nvmlDeviceSetComputeMode", "smi:compute-policy"


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        pytest.param(operation, call, marks=marks, id=f"{operation.name}, {call}")
        for operation, call, marks in (
            (PrepareWithDaemon(GPU_WITH_DAEMON), HardwareCall(MODE), pytest.mark.soak),
            (PrepareWithDaemon(GPU_WITH_DAEMON), HardwareCall(MODE, is_done=True), ()),
            (UnprepareWithDaemon(GPU_WITH_DAEMON), HardwareCall(MODE), pytest.mark.soak),
            (UnprepareWithDaemon(GPU_WITH_DAEMON), HardwareCall(MODE, is_done=True), ()),
            # It lists the time slice twice before it is set, and once before it is restored.
            (PrepareWithSteps(SHARED_GPU), HardwareCall(TIME_SLICE, earlier=2), ()),
            (UnprepareWithSteps(SHARED_GPU), HardwareCall(TIME_SLICE, earlier=1), ()),
        )
    ],
)
async def test_killed_in_a_call_that_changes_a_gpu_the_plugin_ends_it_or_undoes_it(
    operation: Operation, call: HardwareCall, server: ApiServer
) -> None:
    await hardware_strikes.strike_hardware_call(server, operation, call, DIVIDING_GPU_PLUGIN, FLAGS)
