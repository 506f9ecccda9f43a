# SPDX-License-Identifier: Apache-2.0
"""Creates and corrects the children of domains, each kind in a step of its own.

`children` says what the children should be. A step that finds them so is in no trace.
"""

from collections.abc import Sequence

from nvdra_api.errors import PermanentError, Reason
from nvdra_api.meta import JsonObject
from nvdra_runtime.telemetry.instrumentation import SpanScope, Telemetry
from nvdra_runtime.telemetry.metrics.process_metrics import ProcessMetrics

from nvdra_cd_controller import children, fixed_settings
from nvdra_cd_controller.children import ChildConfig
from nvdra_cd_controller.domain_snapshot import DomainSnapshot
from nvdra_cd_controller.object_writer import ObjectWriter


class ChildrenWriter:
    """Writes the children of one controller's domains."""

    def __init__(
        self, writer: ObjectWriter, telemetry: Telemetry[ProcessMetrics], config: ChildConfig
    ) -> None:
        self._writer = writer
        self._telemetry = telemetry
        self._config = config

    async def ensure(self, snapshot: DomainSnapshot) -> None:
        """Add the finalizer and create or correct the children of a domain that lives.

        Raises:
            DriverError: A child cannot be as it should be; those after it are not written.
        """
        if self._config.is_host_managed:
            await self._writer.prepare_domain(snapshot, {})
        else:
            await self._ensure_daemons(snapshot)
        with self._step("ensure claim templates"):
            template = self._workload_template(snapshot)
            await self._writer.ensure(template, snapshot.workload_templates)

    def all_exist(self, snapshot: DomainSnapshot) -> bool:
        """Whether the domain has every child that it is to have, and none is being deleted."""
        kinds: list[Sequence[object]] = [snapshot.workload_templates]
        if not self._config.is_host_managed:
            kinds += [snapshot.daemon_templates, snapshot.daemonsets]
            if self._config.network_rules is not None:
                kinds.append(snapshot.network_policies)
        return all(kinds) and not any(child.is_terminating for child in snapshot.children)

    async def _ensure_daemons(self, snapshot: DomainSnapshot) -> None:
        """Write what the daemons need in order to start: first of all what protects them."""
        assert snapshot.domain is not None
        settings = fixed_settings.of_domain(snapshot, self._config)
        config = fixed_settings.applied(self._config, settings)
        annotations = fixed_settings.missing_annotation(snapshot, settings)
        await self._writer.prepare_domain(snapshot, annotations)
        namespace = self._daemon_namespace(snapshot)
        with self._step("ensure network policy"):
            policy = children.network_policy(snapshot.uid, namespace, config)
            if policy is None:  # one of a time when there were policies
                await self._writer.remove(snapshot.network_policies)
            else:
                await self._writer.ensure(policy, snapshot.network_policies)
        with self._step("ensure daemonset"):
            template = children.daemon_claim_template(snapshot.domain, namespace)
            await self._writer.ensure(template, snapshot.daemon_templates)
            daemonset = children.daemonset(snapshot.uid, namespace, config)
            await self._writer.ensure(daemonset, snapshot.daemonsets)

    def _workload_template(self, snapshot: DomainSnapshot) -> JsonObject:
        assert snapshot.domain is not None
        try:
            return children.workload_claim_template(snapshot.domain, self._config)
        except ValueError as error:
            metadata = snapshot.domain.metadata
            raise PermanentError(
                Reason.INVALID_CONFIG,
                f"ComputeDomain {metadata.namespace}/{metadata.name} is not valid: {error}",
                "delete it and create it again with a valid spec",
            ) from error

    def _daemon_namespace(self, snapshot: DomainSnapshot) -> str:
        """Namespace of the domain's daemons: where they are, or else where new ones are created."""
        for child in (*snapshot.daemonsets, *snapshot.daemon_templates):
            return child.namespace
        return self._config.namespace

    def _step(self, name: str) -> SpanScope:
        return self._telemetry.step(name).discarded_unless_written()
