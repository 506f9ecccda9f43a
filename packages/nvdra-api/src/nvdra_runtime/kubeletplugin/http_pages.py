# SPDX-License-Identifier: Apache-2.0
"""The HTTP servers of a plugin. They are opened once, and show another content in each phase."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry

from nvdra_runtime.http import servers
from nvdra_runtime.http.connections import OnDropped
from nvdra_runtime.http.debug_endpoint import Action, StatusSource
from nvdra_runtime.http.probes import Check
from nvdra_runtime.kubeletplugin.settings import PluginSettings
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry.logs import ConfiguredLogging
from nvdra_runtime.telemetry.recent_traces.recorder import TraceRecorder


class HttpPages:
    """Probes, metrics and debug pages."""

    def __init__(
        self,
        settings: PluginSettings,
        registry: CollectorRegistry,
        on_dropped: OnDropped,
        recorder: TraceRecorder,
        logging: ConfiguredLogging,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._on_dropped = on_dropped
        self._recorder = recorder
        self._logging = logging
        self._clock = clock
        self._checks: dict[str, Check] = {}
        self._status: StatusSource = dict
        self._actions: dict[str, Action] = {}
        self._is_open = False
        self._servers = AsyncExitStack()

    async def show(
        self,
        checks: Mapping[str, Check],
        status: StatusSource,
        actions: Mapping[str, Action] = MappingProxyType({}),
    ) -> None:
        """Show these checks in `/readyz` and this status; open the servers if they are not.

        Args:
            checks: The checks of `/readyz`.
            status: The document of `/debug/status`.
            actions: What commands can ask for below `/debug`, by path.

        Raises:
            OSError: An address cannot be used.
        """
        self._checks.clear()
        self._checks.update(checks)
        self._status = status
        self._actions.clear()
        self._actions.update(actions)
        if self._is_open:
            return
        self._is_open = True
        settings, enter = self._settings, self._servers.enter_async_context
        await enter(
            servers.serve_public(
                settings.http_endpoint,
                self._checks,
                self._registry,
                settings.metrics_path,
                self._on_dropped,
            )
        )
        await enter(
            servers.serve_debug(
                settings.debug_endpoint,
                self._recorder,
                self._logging,
                self._clock,
                self._current_status,
                self._on_dropped,
                self._actions,
            )
        )

    async def aclose(self) -> None:
        """Close the servers; for `contextlib.aclosing`."""
        await self._servers.aclose()

    def _current_status(self) -> Mapping[str, Any]:
        return self._status()
