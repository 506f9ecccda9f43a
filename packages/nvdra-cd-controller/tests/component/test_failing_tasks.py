# SPDX-License-Identifier: Apache-2.0
"""What fails unexpectedly in one task of the controller ends neither it nor another task."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.faults import task_faults
from nvdra_testing.faults.task_campaign import Campaign
from nvdra_testing.polling import wait_until

PROGRAM = "nvdra-cd-controller"


def elected(world: DriverInstallation) -> tuple[str, ...]:
    return (
        "--leader-election-enabled",
        f"--leader-election-lease-lock-namespace={world.driver_namespace}",
        "--leader-election-lease-lock-name=nvdra-controller",
        "--leader-election-lease-duration=120s",
        "--leader-election-renew-deadline=60s",
        "--leader-election-retry-period=500ms",
    )


async def test_each_exception_in_each_task_leaves_the_others_and_the_domains_served(
    world: DriverInstallation,
) -> None:
    with TemporaryDirectory(prefix="nvdra-", dir="/dev/shm") as directory:
        variables = task_faults.environment(Path(directory))
        with world.run_controller(*elected(world), variables=variables) as controller:
            await wait_until(controller.is_ready)
            await wait_until(lambda: "queue" in controller.get("/debug/status", debug=True))
            tasks = task_faults.connect(Path(directory), PROGRAM)
            await wait_until(lambda: any(each.name == "resync" for each in tasks.tasks()))
            campaign = Campaign(tasks, lambda: controller.get("/metrics"))
            names = await asyncio.to_thread(campaign.run)
            assert {"events", "informer", "resync", "lease", "end of lease"} <= names
            text = controller.get("/readyz?verbose")
            assert "[+]tasks ok: failed unexpectedly and goes on, see the log: " in text
            world.create_domain()
            await wait_until(lambda: world.status().get("status"))


async def test_a_failure_to_renew_the_lease_ends_the_process(world: DriverInstallation) -> None:
    with TemporaryDirectory(prefix="nvdra-", dir="/dev/shm") as directory:
        variables = task_faults.environment(Path(directory))
        with world.run_controller(*elected(world), variables=variables) as controller:
            await wait_until(controller.is_ready)
            tasks = task_faults.connect(Path(directory), PROGRAM)
            await wait_until(lambda: any(each.name == "lease" for each in tasks.tasks()))
            (lease,) = [each for each in tasks.tasks() if each.name == "lease"]
            tasks.throw(lease, "MemoryError")
            assert await asyncio.to_thread(controller.process.wait, 30) == 1
            assert "Error: MemoryError" in controller.log.read_text()
