# SPDX-License-Identifier: Apache-2.0
"""The webhook's start: creates its parts in order and stops them in the opposite order."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from nvdra_api.gates import UNAVAILABLE_FEATURES
from nvdra_api.ids import NodeName
from nvdra_runtime.http import probes, servers
from nvdra_runtime.kube import client as kube
from nvdra_runtime.kube import request_observer
from nvdra_runtime.kube.connection import KubeSettings
from nvdra_runtime.process import background_tasks
from nvdra_runtime.process.clock import SystemClock
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.telemetry import instrumentation, logs
from nvdra_runtime.telemetry.logs import ConfiguredLogging

from nvdra_webhook.__about__ import __version__
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.certificates.files import KeyPairFiles
from nvdra_webhook.certificates.managed import ManagedKeyPairs, Places
from nvdra_webhook.certificates.tls import TlsKeyPair
from nvdra_webhook.cluster_look import ClusterLook
from nvdra_webhook.endpoints import Endpoints
from nvdra_webhook.metrics import WebhookMetrics
from nvdra_webhook.serving import server
from nvdra_webhook.serving.connection import Limits
from nvdra_webhook.settings import Settings

PROGRAM: Final = "nvdra-webhook"

LOG: Final = logs.logger(__name__)


async def main(settings: Settings, logging: ConfiguredLogging, stop: asyncio.Event) -> None:
    """Answer admission requests until `stop` is set, and a grace period longer."""
    LOG.info("Starting", version=__version__, **process_settings.as_flags(settings))
    clock, metrics = SystemClock(), WebhookMetrics()
    tls = TlsKeyPair(settings.tls_min_version, _now)
    metrics.register_certificate(tls.not_after_s)
    node, dropped = NodeName(settings.node_name), metrics.process.connection_dropped
    async with instrumentation.for_process(
        PROGRAM, __version__, node, settings.pod_uid, clock=clock, metrics=metrics.process
    ) as telemetry:
        ready: dict[str, probes.Check] = {
            "certificate": tls.problem,
            "draining": lambda: _draining(stop),
            "tasks": probes.tasks_check(telemetry.task_failures),
        }
        async with (
            servers.serve_public(
                settings.http_endpoint, ready, metrics.registry, settings.metrics_path, dropped
            ),
            _following(settings, tls, metrics) as names,
            servers.serve_debug(
                settings.debug_endpoint,
                telemetry.recorder,
                logging,
                clock,
                lambda: _status(tls, names()),
                dropped,
            ),
            _reviewing(settings, tls, metrics, ready, names),
        ):
            await stop.wait()
            LOG.info("Stopping", grace_period_s=settings.shutdown_grace_period)
            await asyncio.sleep(settings.shutdown_grace_period)


@asynccontextmanager
async def _following(
    settings: Settings, tls: TlsKeyPair, metrics: WebhookMetrics
) -> AsyncIterator[Callable[[], ClusterNames]]:
    """Keep the key pair current, and the cluster's names. Yields a function that returns these.

    Without `cluster_lookup_interval` no names are known.
    """
    names: Callable[[], ClusterNames] = ClusterNames
    tasks: dict[str, background_tasks.Run] = {}
    async with AsyncExitStack() as stack:
        if settings.needs_api_server:
            kube_settings = KubeSettings.from_flags(settings, PROGRAM, __version__)
            observe = request_observer.count_and_log(metrics.process)
            api = await stack.enter_async_context(kube.connect(kube_settings, observe))
            if settings.cluster_lookup_interval:
                look = ClusterLook(api, settings.cluster_lookup_interval)
                names, tasks["cluster_look"] = look.names, look.repeat
            if settings.tls_secret_name:
                pairs = ManagedKeyPairs(
                    api, _places(settings), tls, _now, metrics.certificate_failure
                )
                tasks["certificates"] = pairs.follow
        if not settings.tls_secret_name:
            files = (Path(settings.tls_cert_file), Path(settings.tls_private_key_file))
            tasks["certificates"] = KeyPairFiles(
                *files, tls, _now, metrics.certificate_failure
            ).follow
        await stack.enter_async_context(background_tasks.running(**tasks))
        yield names


def _places(settings: Settings) -> Places:
    """The objects in which a managed key pair is kept."""
    return Places(
        settings.namespace,
        settings.tls_secret_name,
        settings.webhook_configuration_name,
        settings.dns_names,
    )


def _reviewing(
    settings: Settings,
    tls: TlsKeyPair,
    metrics: WebhookMetrics,
    ready: Mapping[str, probes.Check],
    names: Callable[[], ClusterNames],
) -> AbstractAsyncContextManager[str]:
    """The server of admission reviews."""
    gates = settings.feature_gates.without(UNAVAILABLE_FEATURES)
    return server.serve(
        settings.bind_address,
        settings.port,
        tls.context,
        Endpoints(gates, names, ready, metrics, time.perf_counter).respond,
        Limits(settings.max_request_bytes, body_s=settings.request_timeout),
        metrics.internal_error,
        metrics.process.connection_dropped,
    )


def _status(tls: TlsKeyPair, names: ClusterNames) -> dict[str, Any]:
    remaining = tls.remaining()
    return {
        "certificate": tls.problem() or "ok",
        "certificate_remaining_s": None if remaining is None else round(remaining.total_seconds()),
        "device_classes": None if names.classes is None else sorted(names.classes),
        "mig_profiles": None if names.profiles is None else sorted(names.profiles),
    }


def _draining(stop: asyncio.Event) -> str | None:
    return "the webhook stops" if stop.is_set() else None


def _now() -> datetime:
    return datetime.now(UTC)
