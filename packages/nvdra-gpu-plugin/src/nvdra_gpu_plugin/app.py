"""The wiring: what a GPU plugin is made of, in the order of its start."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from nvdra_api.runtime.http.probes import Remark
from nvdra_api.runtime.plugin import foundation, front, slices
from nvdra_api.runtime.plugin.fetching import Claims
from nvdra_api.runtime.plugin.foundation import Program
from nvdra_api.runtime.plugin.front import Driver
from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.rebuild import Rebuild
from nvdra_api.runtime.plugin.turns import Turns
from nvdra_api.runtime.process import background
from nvdra_api.runtime.process import settings as process_settings
from nvdra_api.runtime.telemetry import logs
from nvdra_api.runtime.telemetry.logs import Logging
from nvdra_api.types.gates import GATES, Feature
from nvdra_cdi.errors import FileError
from nvdra_cdi.host import Host as CdiHost
from nvdra_cdi.nvidia import roots as driver_roots
from nvdra_cdi.nvidia.options import NEW_IN_1_20, Options

from nvdra_gpu_plugin import hardware, publish, report, retirement
from nvdra_gpu_plugin.__about__ import __version__
from nvdra_gpu_plugin.adoption import Adoption
from nvdra_gpu_plugin.cdi_specs import SpecFiles
from nvdra_gpu_plugin.conflicts import Holdings
from nvdra_gpu_plugin.hardware import Hardware
from nvdra_gpu_plugin.prepare import Preparer
from nvdra_gpu_plugin.publish import Publication
from nvdra_gpu_plugin.records import GpuHolding
from nvdra_gpu_plugin.settings import Settings

PROGRAM = "nvdra-gpu-plugin"

GATES_IN_USE = frozenset({Feature.LIST_ATTRIBUTES, Feature.TIME_SLICING, Feature.MPS})
"""Gates that change something here: attributes, and which configs are valid."""

LOG = logs.logger(__name__)


async def main(settings: Settings, logging: Logging, stop: asyncio.Event) -> None:
    """Serve the node until `stop` is set.

    Slices, CDI specs and prepared devices stay when it ends: pods keep running.
    """
    LOG.info("Starting", version=__version__, **process_settings.as_flags(settings))
    _warn_of_idle_gates(settings)
    gates = settings.feature_gates
    program = Program(PROGRAM, __version__, devices="GPUs")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        base = await enter(foundation.laid(program, settings, stop))
        if base is None:
            return
        specs = SpecFiles(settings.cdi_root, base.clock)
        gpus = await enter(
            hardware.running(
                base.host,
                partial(_cdi_options, settings, base.home.hook_path),
                specs,
                base.note_nvml_call,
                base.clock,
                base.threads,
                base.files,
            )
        )
        publisher = await enter(slices.publisher(base).running())
        publication = Publication(base.node, gates, gpus, publisher, base.events, base.metrics)

        holdings = Holdings()
        held = HeldClaims(base.store, GpuHolding, base.metrics.held, holdings)
        turns = Turns(held.released)
        claims = Claims(base.api, turns, base.telemetry)
        preparer = Preparer(base.node, gates, claims, gpus, held, holdings, base.telemetry)
        records = Rebuild(
            base.driver,
            base.node,
            base.store,
            held,
            base.evidence,
            Adoption(gpus, claims.fetch).adopt,
            base.events,
        )
        await enter(
            background.tasks(
                publication=publication.run(), retirement=retirement.run(gpus, held, records)
            )
        )
        driver = Driver(
            held=held,
            records=records,
            turns=turns,
            claims=claims,
            preparer=preparer,
            publisher=publisher,
            devices=partial(report.devices, gpus, held),
            check={"driver": partial(_driver_problem, gpus)},
            chore=specs.keep,
            failures=(OSError, FileError),
        )
        await enter(front.serving(base, settings, driver, logging))
        await stop.wait()


def _warn_of_idle_gates(settings: Settings) -> None:
    """A gate that is on and does nothing yet is told, or somebody waits for its feature."""
    on = {feature for feature in GATES if settings.feature_gates.is_on(feature)}
    idle = sorted(on - GATES_IN_USE - {gate for gate in GATES if GATES[gate].default})
    if idle:
        LOG.warning("Feature gates that are on have no effect in this version", gates=idle)


def _cdi_options(settings: Settings, hook_path: str) -> Options:
    """Where CDI generation looks, and what the host calls it."""
    driver_root = str(settings.container_driver_root)
    return Options(
        driver_root=driver_root,
        target_driver_root=str(settings.nvidia_driver_root),
        dev_root=driver_roots.device_tree(CdiHost(), driver_root, str(settings.dev_root)),
        sys_root=str(settings.sys_root),
        hook_path=hook_path,
        disabled_hooks=NEW_IN_1_20,
    )


def _driver_problem(gpus: Hardware) -> str | None:
    """Why there are no GPUs to give, or that there are none."""
    return gpus.problem or (Remark(publish.NO_GPU) if gpus.is_empty else None)
