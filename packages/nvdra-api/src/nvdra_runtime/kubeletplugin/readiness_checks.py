# SPDX-License-Identifier: Apache-2.0
"""Readiness checks of any plugin."""

from typing import Any

from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.http.probes import Check
from nvdra_runtime.kubeletplugin.server import KubeletStatus
from nvdra_runtime.node.record_store import RecordStore
from nvdra_runtime.resourceslices.publisher import Publisher


def registration_check(kubelet: KubeletStatus) -> Check:
    """The kubelet has registered the plugin, and its sockets exist."""

    def problem() -> str | None:
        if kubelet.problem:
            return kubelet.problem
        if kubelet.is_registered:
            return None
        return kubelet.registration.error or (
            "the kubelet has not registered the plugin yet; if it stays so, this kubelet has "
            "another root (--root-dir) and does not see the plugin's socket in "
            f"{kubelet.registry_dir}: set kubeletRegistrarDirectoryPath and "
            "kubeletPluginsDirectoryPath in the chart's values"
        )

    return problem


def slices_check(publisher: Publisher) -> Check:
    """The API server has the node's ResourceSlices."""

    def problem() -> str | None:
        state = publisher.state
        return None if state.is_published else state.error or "the slices are being written"

    return problem


def state_check(store: RecordStore, prepared_claims: PreparedClaims[Any]) -> Check:
    """Claims can be recorded, and no records are missing."""
    return lambda: store.problem or prepared_claims.incomplete_reason or None
