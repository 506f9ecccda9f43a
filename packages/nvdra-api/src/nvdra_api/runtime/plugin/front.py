"""What the outside meets of a plugin: the kubelet, the prober, whoever asks for its status.

Entered last and left first: nobody is answered before everything behind it stands.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic

from nvdra_api.runtime.http import ports
from nvdra_api.runtime.http.probes import Check
from nvdra_api.runtime.kube.publisher import Publisher
from nvdra_api.runtime.kubelet import server as kubelet_server
from nvdra_api.runtime.plugin import checks, hook, report, roots, service, upkeep
from nvdra_api.runtime.plugin.cleanup import Cleanup
from nvdra_api.runtime.plugin.fetching import Claims
from nvdra_api.runtime.plugin.foundation import Foundation
from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.node_settings import NodeSettings
from nvdra_api.runtime.plugin.rebuild import Rebuild
from nvdra_api.runtime.plugin.refusals import Refusals
from nvdra_api.runtime.plugin.turns import Turns
from nvdra_api.runtime.process import background
from nvdra_api.runtime.process.flights import Flights
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.logs import Logging
from nvdra_api.types.holdings import H
from nvdra_api.types.ids import ClaimUID

LOG = logs.logger(__name__)


@dataclass(frozen=True, slots=True)
class Driver(Generic[H]):
    """What one driver is, behind its front.

    Attributes:
        held: What is prepared.
        records: Makes that complete.
        turns: Who waits for what is held.
        claims: Claims as they are now.
        preparer: Gives and takes back.
        publisher: The node's slices.
        devices: For its status.
        check: What only this driver needs to be ready, by name; told first.
        chore: Puts back the files that only this driver has.
        failures: What the chore raises where it cannot.
    """

    held: HeldClaims[H]
    records: Rebuild[H]
    turns: Turns
    claims: Claims
    preparer: service.Preparer[H]
    publisher: Publisher
    devices: report.Devices
    check: Mapping[str, Check]
    chore: upkeep.Chore
    failures: upkeep.Failures


@asynccontextmanager
async def serving(
    base: Foundation, settings: NodeSettings, driver: Driver[H], logging: Logging
) -> AsyncIterator[None]:
    """Serve the node until the block is left; what is held then stays held, its pods go on."""
    name, held, turns = base.driver, driver.held, driver.turns
    refusals = Refusals(base.node, base.events, base.metrics, base.clock)
    kept = upkeep.Upkeep(
        base.files,
        (
            base.home.lock.keep,
            partial(hook.keep, settings.nvidia_cdi_hook_path, settings.plugin_dir),
            driver.chore,
        ),
        driver.failures,
    )
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        calls = service.Service(
            base.node,
            driver.claims.fetch,
            driver.preparer,
            held,
            driver.records,
            turns,
            await enter(Flights[ClaimUID]()),
            await enter(roots.running(base.node, base.api, base.store, base.telemetry)),
            refusals,
            base.telemetry,
            base.clock,
        )
        cleanup = Cleanup(name, base.api, held, turns, base.evidence, calls.release)
        await enter(
            background.tasks(
                upkeep=kept.run(),
                rebuild=driver.records.run(),
                cleanup=cleanup.go_round(),
                cleanup_at_once=cleanup.clear_the_way(),
            )
        )
        kubelet = await enter(
            kubelet_server.serving(
                name, settings.plugin_dir, settings.kubelet_registrar_directory_path, calls
            )
        )
        ready: Mapping[str, Check] = {
            **driver.check,
            "slices": checks.published(driver.publisher),
            "state": checks.recorded(base.store, held),
            "files": lambda: kept.problem or None,
            "kubelet": checks.registered(kubelet),
        }
        await enter(
            ports.public(
                settings.http_endpoint, ready, base.metrics.registry, settings.metrics_path
            )
        )
        status = report.Report(
            name, base.program.version, base.node, driver.devices, held, refusals, ready, base.clock
        )
        await enter(
            ports.private(
                settings.debug_endpoint,
                base.telemetry.recorder,
                logging,
                base.clock,
                status.document,
            )
        )
        try:
            yield
        finally:
            LOG.info("Stopping; what is held stays held, and its pods go on", claims=_left(held))
            turns.close()


def _left(held: HeldClaims[H]) -> list[str]:
    """What stays prepared without the driver: each claim, and the pods that use it."""
    return [f"{claim.ref} of {', '.join(claim.pod_names)}" for claim in held.values()]
