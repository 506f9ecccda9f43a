# SPDX-License-Identifier: Apache-2.0
"""The daemon's start: creates its parts in order and stops them in the opposite order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from nvdra_api import names
from nvdra_api.errors import DriverError
from nvdra_runtime.computedomain import node_clique
from nvdra_runtime.computedomain.imex_links import DomainHosts
from nvdra_runtime.http import debug_endpoint, probes, servers
from nvdra_runtime.kube import client as kube
from nvdra_runtime.kube import request_observer
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.connection import KubeSettings
from nvdra_runtime.kube.event_recorder import EventRecorder, ObjectReference
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.process.worker import Worker
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.telemetry import instrumentation, logs
from nvdra_runtime.telemetry.logs import ConfiguredLogging
from nvdra_runtime.telemetry.metrics.process_metrics import ProcessMetrics

from nvdra_imex_daemon import status_report
from nvdra_imex_daemon.__about__ import __version__
from nvdra_imex_daemon.configuration import dns_names, peers
from nvdra_imex_daemon.configuration.dns_names import DnsNames
from nvdra_imex_daemon.configuration.imex_files import ImexFiles
from nvdra_imex_daemon.configuration.peer_configurator import PeersByAddress, PeersByName
from nvdra_imex_daemon.daemon import Daemon, MembershipCallbacks
from nvdra_imex_daemon.domain_spans import DomainReference, DomainSpans
from nvdra_imex_daemon.membership import clique_label
from nvdra_imex_daemon.membership.announcer import Announcer
from nvdra_imex_daemon.membership.entries import MemberIdentity
from nvdra_imex_daemon.membership.index_file import IndexFile
from nvdra_imex_daemon.membership.links_annotation import LinksAnnotation
from nvdra_imex_daemon.membership.member_list import MemberList
from nvdra_imex_daemon.membership.member_store import (
    CliqueMemberStore,
    MemberStore,
    Pod,
    StatusMemberStore,
)
from nvdra_imex_daemon.membership.node_clique_monitor import NodeCliqueMonitor
from nvdra_imex_daemon.metrics import ImexMetrics
from nvdra_imex_daemon.process import imex_query
from nvdra_imex_daemon.process.imex_monitor import ImexMonitor
from nvdra_imex_daemon.process.link_monitor import LinkMonitor
from nvdra_imex_daemon.process.ready_lock_holder import ReadyLockHolder
from nvdra_imex_daemon.process.supervisor import Supervisor
from nvdra_imex_daemon.settings import Settings
from nvdra_imex_daemon.status_report import StatusReport

PROGRAM: Final = "nvdra-imex-daemon"

_QPS: Final = 20
_BURST: Final = 40
"""Low limits for one of thousands of daemons: it writes when it joins, is ready, and leaves."""

LOG = logs.logger(__name__)


_Shown = tuple[probes.Check, debug_endpoint.StatusSource]


@dataclass(frozen=True, slots=True)
class _Process:
    """What every part of the daemon uses."""

    settings: Settings
    clock: SystemClock
    metrics: ProcessMetrics
    api: Client
    annotation: LinksAnnotation
    spans: DomainSpans


@dataclass(frozen=True, slots=True)
class _NodeFiles:
    """The files of this pod and its node, and the thread on which they are read and written."""

    thread: Worker
    imex: ImexFiles
    ready_lock: ReadyLockHolder
    index: IndexFile
    last_index: int | None


@dataclass(frozen=True, slots=True)
class _Member:
    """What makes this node a member of its domain."""

    supervisor: Supervisor
    imex: ImexMonitor
    list: MemberList
    daemon: Daemon
    links: LinkMonitor


async def main(settings: Settings, logging: ConfiguredLogging, stop: asyncio.Event) -> None:
    """Run a domain's daemon on this node until `stop` is set."""
    LOG.info("Starting", version=__version__, **process_settings.as_flags(settings))
    clock, metrics = SystemClock(), ProcessMetrics(driver=names.COMPUTE_DOMAIN_DRIVER)
    began = clock.now()
    async with (
        instrumentation.for_process(
            PROGRAM, __version__, settings.node, settings.pod_uid, clock=clock, metrics=metrics
        ) as telemetry,
        kube.connect(
            KubeSettings(settings.kubeconfig, _QPS, _BURST, f"{PROGRAM}/{__version__}"),
            request_observer.count_and_log(metrics),
        ) as api,
        _labelled(settings, api) as annotation,
    ):
        domain = DomainReference(
            settings.compute_domain_namespace, settings.compute_domain_name, settings.domain
        )
        own_trace, place = settings.member_trace, (settings.clique, settings.node)
        spans = DomainSpans(telemetry, clock, domain, *place, has_own_trace=own_trace)
        process = _Process(settings, clock, metrics, api, annotation, spans)
        async with (
            _running(process) as (check, document),
            servers.serve_public(
                settings.http_endpoint,
                {"imex": check, "tasks": probes.tasks_check(telemetry.task_failures)},
                metrics.registry,
                settings.metrics_path,
                metrics.connection_dropped,
            ),
            servers.serve_debug(
                settings.debug_endpoint,
                telemetry.recorder,
                logging,
                clock,
                document,
                metrics.connection_dropped,
            ),
        ):
            spans.record("start daemon", began)
            await stop.wait()
            LOG.info("Stopping")


@asynccontextmanager
async def _labelled(settings: Settings, api: Client) -> AsyncIterator[LinksAnnotation]:
    """Yield the annotation of our pod. A daemon that does not announce itself labels the pod."""
    pod = (settings.pod_namespace, settings.pod_name)
    annotation = LinksAnnotation(api, *pod)
    if settings.announces_itself:
        yield annotation
        return
    async with clique_label.set_in_background(api, *pod, settings.clique, lambda: annotation.value):
        yield annotation


@asynccontextmanager
async def _running(process: _Process) -> AsyncIterator[_Shown]:
    """Run what a node with fabric needs; on others there is nothing to run.

    Yields the check of `/readyz`, and the source of the debug page.
    """
    settings = process.settings
    if not settings.clique:
        LOG.info("This node has no NVLink fabric: there is no IMEX to run")
        yield _check_without_fabric, partial(status_report.identity, settings)
        return
    recorder = EventRecorder(process.api, PROGRAM, settings.node, process.clock.now)
    async with (
        recorder.running() as events,
        _node_files(settings) as files,
    ):
        member = _member(process, files, events)
        node_clique_monitor = NodeCliqueMonitor(
            settings.clique,
            partial(files.thread.run, node_clique.read, settings.imex_dir),
            process.annotation.write_node_clique,
        )
        daemon, links = member.daemon, member.links
        report = StatusReport(
            settings, daemon, member.list, member.supervisor, links, process.clock
        )
        async with (
            member.supervisor.running(),
            member.imex.running(member.supervisor),
            member.list.running(),
            daemon.running(),
            links.running(),
            background_tasks.running(node_clique=node_clique_monitor.run),
        ):
            yield lambda: _describe_problem(daemon.problem_tracker.error), report.document


@asynccontextmanager
async def _node_files(settings: Settings) -> AsyncIterator[_NodeFiles]:
    """Make the files ready: nothing is left of an earlier daemon, and this pod has its lock."""
    async with Worker("files") as thread:
        files = ImexFiles(
            template=settings.template_path,
            config=settings.config_path,
            nodes=settings.nodes_path,
            hosts=settings.hosts_file,
            pod_ip=settings.pod_ip,
            names=_dns_names(settings),
            name_count=settings.max_nodes_per_imex_domain if settings.uses_dns_names else 0,
        )
        ready_lock = ReadyLockHolder(settings.imex_dir, settings.pod)
        await thread.run(files.remove_temporary_files, (settings.index_path, ready_lock.path))
        await thread.run(ready_lock.create_file)
        index = IndexFile(settings.index_path, settings.clique)
        yield _NodeFiles(thread, files, ready_lock, index, await thread.run(index.read))


def _member(process: _Process, files: _NodeFiles, events: EventRecorder) -> _Member:
    """Create the supervisor of IMEX, the monitors, the list of members, and what joins them."""
    settings, spans, thread = process.settings, process.spans, files.thread
    imex_metrics = ImexMetrics(process.metrics.registry)

    def imex_changed() -> None:
        # First the lock: who reads Ready in the entry looks for it.
        files.ready_lock.update(is_ready=imex.problem is None)
        daemon.wake()

    # Supervisor, monitor and daemon notify each other; the functions refer to objects below.
    supervisor = Supervisor(
        ("nvidia-imex", "-c", str(settings.config_path)),
        partial(thread.run, files.imex.write_start_files),
        partial(spans.operation, "start imex"),
        lambda: imex.child_changed(),
        imex_metrics.count_restart,
    )
    imex = ImexMonitor(
        partial(imex_query.query_status, settings.config_path),
        imex_changed,
        spans,
        process.clock,
        settings.imex_hang_timeout,
    )
    identity = MemberIdentity(
        settings.clique,
        settings.node,
        settings.pod_ip,
        settings.pod,
        settings.max_nodes_per_imex_domain,
    )
    store = _member_store(settings, identity)
    member_list = _member_list(process, store, identity, files.last_index)
    links = LinkMonitor(
        partial(imex_query.query_nodes, settings.config_path),
        lambda: _domain_hosts(daemon, settings),
        process.annotation.write,
        supervisor.reresolve_peers,
    )
    parts = (identity, files.imex, thread, store.node_field, supervisor)
    peers_of_imex = (
        PeersByName(*parts, links.note_peer_left)
        if settings.uses_dns_names
        else PeersByAddress(*parts)
    )
    callbacks = MembershipCallbacks(
        imex_metrics.set_peers,
        partial(_emit_problem, events, _event_subjects(settings), spans, settings.node),
        lambda index: thread.run(files.index.write, index),
    )
    daemon = Daemon(member_list, imex, peers_of_imex, supervisor, callbacks, spans, process.clock)
    return _Member(supervisor, imex, member_list, daemon, links)


def _member_list(
    process: _Process, store: MemberStore, member: MemberIdentity, last_index: int | None
) -> MemberList:
    settings, annotation = process.settings, process.annotation
    announcer = (
        Announcer(
            process.api,
            _pod(settings),
            settings.clique,
            member.max_nodes,
            lambda: annotation.value,
            started=int(process.clock.now().timestamp()),
        )
        if settings.announces_itself
        else None
    )
    restarted = process.metrics.watch_restart
    return MemberList(process.api, store, member, restarted, last_index, announcer)


def _pod(settings: Settings) -> Pod:
    return Pod(settings.pod_namespace, settings.pod_name, settings.pod_uid)


def _member_store(settings: Settings, member: MemberIdentity) -> MemberStore:
    """The object in which the members of the domain are listed."""
    if settings.uses_cliques:
        return CliqueMemberStore(settings.domain, member, _pod(settings))
    return StatusMemberStore(
        settings.domain, settings.compute_domain_namespace, settings.compute_domain_name
    )


def _event_subjects(settings: Settings) -> tuple[ObjectReference, ...]:
    """The objects that get Events: this pod, and the domain, which users look at."""
    return (
        ObjectReference("v1", "Pod", settings.pod_name, settings.pod_uid, settings.pod_namespace),
        ObjectReference(
            names.NVIDIA_API_VERSION,
            names.DOMAIN_KIND,
            settings.compute_domain_name,
            settings.compute_domain_uuid,
            settings.compute_domain_namespace,
        ),
    )


def _emit_problem(
    events: EventRecorder,
    subjects: tuple[ObjectReference, ...],
    spans: DomainSpans,
    node: str,
    problem: DriverError,
) -> None:
    text = f"node {node}: {problem.event_text}"
    events.emit(subjects, "Warning", problem.reason, text, spans.trace)


def _domain_hosts(daemon: Daemon, settings: Settings) -> DomainHosts:
    """The hosts of the domain. Our IMEX should be connected to those that are READY, as ours is."""
    members, names_of_peers = daemon.peer_list.peers, _dns_names(settings)
    hosts = {peer: peers.hosts(peer, names_of_peers) for peer in members}
    is_ready = daemon.problem_tracker.error is None
    return DomainHosts(
        own=[
            host
            for peer in members
            if is_ready and peer.is_ready and peer.index == daemon.index
            for host in hosts[peer]
        ],
        ready={
            host: peer.node
            for peer in members
            if peer.is_ready and peer.index != daemon.index
            for host in hosts[peer]
        },
        listed=[host for peer in members for host in hosts[peer]],
        daemonset=names.daemon_name(settings.domain),
    )


def _dns_names(settings: Settings) -> DnsNames:
    return dns_names.of_domain(settings.domain, settings.peer_names)


def _describe_problem(problem: DriverError | None) -> str | None:
    return None if problem is None else f"{problem.reason}: {problem.event_text}"


def _check_without_fabric() -> str | None:
    return probes.PassingRemark("no NVLink fabric on this node: nothing to run")
