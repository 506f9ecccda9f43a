# SPDX-License-Identifier: Apache-2.0
"""Which settings the daemons of a domain have, whatever the controller is set to by now. Pure.

Source: docs/decisions/cd-controller.md, "What of a domain never changes?".
"""

from collections.abc import Mapping
from dataclasses import replace

from nvdra_api import names
from nvdra_api.meta import JsonObject
from nvdra_runtime.computedomain import domain_settings
from nvdra_runtime.computedomain.domain_settings import DomainSettings

from nvdra_cd_controller.children import ChildConfig
from nvdra_cd_controller.domain_snapshot import DomainSnapshot


def of_domain(snapshot: DomainSnapshot, child_config: ChildConfig) -> DomainSettings:
    """What the domain's DaemonSet runs with; else what it was made with; else the controller's.

    The DaemonSet comes first, because its daemons run. The annotation is for a DaemonSet that has
    to be made again.
    """
    running = (_of_daemonset(child.object) for child in snapshot.daemonsets)
    found = next((each for each in running if each is not None), None)
    if found is None and snapshot.domain is not None:
        found = domain_settings.from_annotations(_annotations(snapshot), snapshot.uid)
    return found or DomainSettings(
        child_config.max_nodes, child_config.gates, child_config.peer_names
    )


def applied(child_config: ChildConfig, settings: DomainSettings) -> ChildConfig:
    """The configuration of one domain's children."""
    return replace(
        child_config,
        max_nodes=settings.max_nodes,
        gates=settings.gates,
        peer_names=settings.peer_names,
    )


def missing_annotation(snapshot: DomainSnapshot, settings: DomainSettings) -> dict[str, str]:
    """The annotation to set on the domain; empty if it has it."""
    value = domain_settings.annotation(settings, snapshot.uid)
    has_it = _annotations(snapshot).get(names.DOMAIN_SETTINGS_ANNOTATION) == value
    return {} if has_it else {names.DOMAIN_SETTINGS_ANNOTATION: value}


def _annotations(snapshot: DomainSnapshot) -> Mapping[str, str]:
    return snapshot.stored["metadata"].get("annotations") or {}


def _of_daemonset(daemonset: JsonObject) -> DomainSettings | None:
    containers = daemonset["spec"]["template"]["spec"].get("containers") or ()
    for container in containers:
        if container.get("name") == names.DAEMON_CONTAINER:
            values = {each["name"]: each.get("value") for each in container.get("env") or ()}
            return domain_settings.parsed(
                values.get("MAX_NODES_PER_IMEX_DOMAIN"),
                values.get("FEATURE_GATES"),
                values.get("PEER_NAMES"),
            )
    return None
