"""The wiring: what a daemon is made of, in the order of its start."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from nvdra_api.runtime.http import debug, ports, probes
from nvdra_api.runtime.kube import client as kube
from nvdra_api.runtime.kube import observation
from nvdra_api.runtime.kube.client import Client
from nvdra_api.runtime.kube.connection import KubeSettings
from nvdra_api.runtime.kube.events import Events, Subject
from nvdra_api.runtime.process import settings as process_settings
from nvdra_api.runtime.process.clock import SystemClock
from nvdra_api.runtime.process.worker import Worker
from nvdra_api.runtime.telemetry import logs, traces
from nvdra_api.runtime.telemetry.logs import Logging
from nvdra_api.runtime.telemetry.process_metrics import ProcessMetrics
from nvdra_api.types import names
from nvdra_api.types.errors import DriverError

from nvdra_imex_daemon import ctl, labelling, report
from nvdra_imex_daemon.__about__ import __version__
from nvdra_imex_daemon.daemon import Daemon, Listeners
from nvdra_imex_daemon.entries import Member
from nvdra_imex_daemon.imex import Imex
from nvdra_imex_daemon.imex_files import ImexFiles
from nvdra_imex_daemon.metrics import ImexMetrics
from nvdra_imex_daemon.peering import ByAddress, ByName
from nvdra_imex_daemon.place import Place
from nvdra_imex_daemon.register import Register
from nvdra_imex_daemon.report import Report
from nvdra_imex_daemon.settings import Settings
from nvdra_imex_daemon.shapes import CliqueShape, Pod, Shape, StatusShape
from nvdra_imex_daemon.story import Domain, Story
from nvdra_imex_daemon.supervisor import Supervisor

PROGRAM: Final = "nvdra-imex-daemon"

_QPS: Final = 20
_BURST: Final = 40
"""One daemon of thousands: it writes when it joins, when it gets ready, and when it leaves."""

LOG = logs.logger(__name__)


async def main(settings: Settings, logging: Logging, stop: asyncio.Event) -> None:
    """Be the domain's daemon on this node until `stop` is set."""
    LOG.info("Starting", version=__version__, **process_settings.as_flags(settings))
    clock = SystemClock()
    began = clock.now()
    metrics = ProcessMetrics(driver=names.COMPUTE_DOMAIN_DRIVER)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        telemetry = await enter(
            traces.of_process(
                PROGRAM, __version__, settings.node, settings.pod_uid, clock=clock, metrics=metrics
            )
        )
        api = await enter(
            kube.connected(
                KubeSettings(settings.kubeconfig, _QPS, _BURST, f"{PROGRAM}/{__version__}"),
                observation.counted(metrics),
            )
        )
        await enter(
            labelling.running(api, settings.pod_namespace, settings.pod_name, settings.clique)
        )
        story = Story(telemetry, clock, _domain(settings), settings.clique, settings.node)
        if settings.clique:
            ready, status = await _join(stack, settings, api, story, clock, metrics)
        else:
            LOG.info("This node has no NVLink fabric: there is no IMEX to run")
            ready, status = _idle, partial(report.identity, settings)
        await enter(
            ports.public(
                settings.http_endpoint, {"imex": ready}, metrics.registry, settings.metrics_path
            )
        )
        await enter(
            ports.private(settings.debug_endpoint, telemetry.recorder, logging, clock, status)
        )
        story.over("start daemon", began)
        await stop.wait()
        LOG.info("Stopping")


async def _join(
    stack: AsyncExitStack,
    settings: Settings,
    api: Client,
    story: Story,
    clock: SystemClock,
    metrics: ProcessMetrics,
) -> tuple[probes.Check, debug.Status]:
    """Everything of a node with fabric; how to see whether it is ready, and what it knows."""
    enter = stack.enter_async_context
    imex_metrics = ImexMetrics(metrics.registry)
    events = await enter(Events(api, PROGRAM, settings.node, clock.now).running())
    thread = await enter(Worker("files"))
    member = Member(
        settings.clique,
        settings.node,
        settings.pod_ip,
        settings.pod,
        settings.max_nodes_per_imex_domain,
    )
    shape = _shape(settings, member)
    files = _files(settings)
    # The three tell each other what moved; whoever is made first hears of it through these.
    supervisor = Supervisor(
        ("nvidia-imex", "-c", str(settings.config_path)),
        partial(thread.run, files.prepare),
        partial(story.operation, "start imex"),
        lambda: imex.child_moved(),
        imex_metrics.restarted,
    )
    imex = Imex(partial(ctl.lack, settings.config_path), lambda: daemon.wake(), story, clock)
    place = Place(settings.place_path, settings.clique)
    former = await thread.run(place.last)
    register = Register(api, shape, member, metrics.watch_restart, former)
    way = ByName if settings.has_names else ByAddress
    daemon = Daemon(
        register,
        imex,
        way(member, files, thread, shape.key, supervisor),
        supervisor,
        Listeners(
            imex_metrics.peers,
            partial(_complain, events, _subjects(settings), story, settings.node),
            lambda index: thread.run(place.keep, index),
        ),
        story,
        clock,
    )
    await enter(supervisor.running())
    await enter(imex.running(supervisor))
    await enter(register.running())
    await enter(daemon.running())
    document = Report(settings, daemon, register, supervisor, clock).document
    return lambda: _lacking(daemon.complaint.lack), document


def _domain(settings: Settings) -> Domain:
    return Domain(settings.compute_domain_namespace, settings.compute_domain_name, settings.domain)


def _shape(settings: Settings, member: Member) -> Shape:
    """Where members meet."""
    if settings.has_cliques:
        pod = Pod(settings.pod_namespace, settings.pod_name, settings.pod_uid)
        return CliqueShape(settings.domain, member, pod)
    return StatusShape(
        settings.domain, settings.compute_domain_namespace, settings.compute_domain_name
    )


def _files(settings: Settings) -> ImexFiles:
    return ImexFiles(
        template=settings.template_path,
        config=settings.config_path,
        nodes=settings.nodes_path,
        hosts_file=settings.hosts_file,
        pod_ip=settings.pod_ip,
        names=settings.max_nodes_per_imex_domain if settings.has_names else 0,
    )


def _subjects(settings: Settings) -> tuple[Subject, ...]:
    """Who is told what keeps us from being ready: our pod, and the domain, which users look at."""
    return (
        Subject("v1", "Pod", settings.pod_name, settings.pod_uid, settings.pod_namespace),
        Subject(
            names.CONFIG_API_VERSION,
            names.DOMAIN_KIND,
            settings.compute_domain_name,
            settings.compute_domain_uuid,
            settings.compute_domain_namespace,
        ),
    )


def _complain(
    events: Events, subjects: tuple[Subject, ...], story: Story, node: str, lack: DriverError
) -> None:
    text = f"node {node}: {lack.advice}"
    events.emit(subjects, "Warning", lack.reason, text, story.trace)


def _lacking(lack: DriverError | None) -> str | None:
    return None if lack is None else f"{lack.reason}: {lack.advice}"


def _idle() -> str | None:
    return probes.Remark("no NVLink fabric on this node: nothing to run")
