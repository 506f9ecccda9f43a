# SPDX-License-Identifier: Apache-2.0
"""The crash campaign: killed before any call that changes something, the plugin recovers.

The calls are recorded from an undisturbed run in the same test and compared with the golden list of
`nvdra_testing.crash_campaigns.golden_points`. A selected call that no run died at fails the test.
`SEED=` repeats a selection, `--soak` selects every call, and `--crash-report=FILE` keeps
the table of all outcomes.
"""

from collections.abc import Sequence

import pytest
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.crash_campaigns import (
    golden_points,
    hardware_strikes,
    passthrough_operations,
    plugin_campaign,
    selection,
    sysfs_strikes,
)
from nvdra_testing.crash_campaigns.hardware_strikes import HardwareCall
from nvdra_testing.crash_campaigns.passthrough_operations import (
    Aftermath,
    PrepareOfVfio,
    StartAfterKilledPrepareOfVfio,
    StartAfterRebootWithVfio,
    UnprepareOfVfio,
    VfioOperation,
)
from nvdra_testing.crash_campaigns.plugin_operations import (
    FirstStart,
    Operation,
    Prepare,
    StartAfterKill,
    Unprepare,
)
from nvdra_testing.crash_campaigns.plugin_sandbox import DIVIDING_GPU_PLUGIN, PASSING_GPU_PLUGIN
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
from nvdra_testing.crash_campaigns.sysfs_strikes import StruckWrite

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


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "aftermaths"),
    [
        pytest.param(PrepareOfVfio, tuple(Aftermath), marks=pytest.mark.soak, id="prepare"),
        pytest.param(UnprepareOfVfio, tuple(Aftermath), marks=pytest.mark.soak, id="unprepare"),
        *(
            pytest.param(
                kind, (aftermath,), marks=pytest.mark.soak, id=f"{kind.name} {aftermath.name}"
            )
            for kind in (
                PrepareOfVfio,
                UnprepareOfVfio,
                StartAfterKilledPrepareOfVfio,
                StartAfterRebootWithVfio,
            )
            for aftermath in Aftermath
        ),
    ],
)
async def test_killed_while_it_changes_a_driver_the_plugin_ends_it_or_gives_the_gpu_back(
    kind: type[VfioOperation],
    aftermaths: Sequence[Aftermath],
    server: ApiServer,
    campaigns: Campaigns,
) -> None:
    selected = campaigns.select(golden_points.load("gpu_plugin"), selection.DRIVERS)
    campaigns.check(
        await plugin_campaign.run_plugin_campaign(
            server,
            kind(passthrough_operations.VFIO_DEVICE, aftermaths),
            selected,
            PASSING_GPU_PLUGIN,
            passthrough_operations.FLAGS,
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


PERSISTENCE, DRAIN = "nvmlDeviceSetPersistenceMode", "nvmlDeviceModifyDrainState"


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        pytest.param(kind, HardwareCall(function, is_done=is_done), marks=marks)
        for kind, function, is_done, marks in (
            (PrepareOfVfio, PERSISTENCE, True, pytest.mark.soak),
            (PrepareOfVfio, DRAIN, False, pytest.mark.soak),
            (PrepareOfVfio, DRAIN, True, ()),
            (UnprepareOfVfio, PERSISTENCE, False, ()),
            (UnprepareOfVfio, PERSISTENCE, True, pytest.mark.soak),
        )
    ],
    ids=str,
)
async def test_killed_while_it_keeps_clients_from_a_gpu_the_plugin_lets_them_in_again(
    kind: type[VfioOperation], call: HardwareCall, server: ApiServer
) -> None:
    operation = kind(passthrough_operations.VFIO_DEVICE, (Aftermath.DELETION,))
    await hardware_strikes.strike_hardware_call(
        server, operation, call, PASSING_GPU_PLUGIN, passthrough_operations.FLAGS
    )


@pytest.mark.parametrize("is_writer_killed", [True, False], ids=["in a container", "alone"])
@pytest.mark.parametrize(
    "write",
    [StruckWrite(is_bind=False), pytest.param(StruckWrite(is_bind=True), marks=pytest.mark.soak)],
    ids=str,
)
async def test_killed_in_a_write_that_lasts_the_plugin_is_followed_by_none_that_writes_again(
    write: StruckWrite, is_writer_killed: bool, server: ApiServer
) -> None:
    await sysfs_strikes.strike_write(
        server, write, passthrough_operations.VFIO_DEVICE, is_writer_killed=is_writer_killed
    )


@pytest.mark.parametrize(
    "write",
    [StruckWrite(is_bind=False), pytest.param(StruckWrite(is_bind=True), marks=pytest.mark.soak)],
    ids=str,
)
async def test_what_a_killed_plugin_wanted_to_write_is_not_written_after_it(
    write: StruckWrite, server: ApiServer
) -> None:
    await sysfs_strikes.strike_before_write(server, write, passthrough_operations.VFIO_DEVICE)
