"""What must be so for any plugin to serve its node, each with the reason when it is not."""

from typing import Any

from nvdra_api.runtime.http.probes import Check
from nvdra_api.runtime.kube.publisher import Publisher
from nvdra_api.runtime.kubelet.server import Kubelet
from nvdra_api.runtime.node.store import Store
from nvdra_api.runtime.plugin.held import HeldClaims


def registered(kubelet: Kubelet) -> Check:
    """The kubelet calls us, on sockets that are there."""

    def problem() -> str | None:
        if kubelet.problem:
            return kubelet.problem
        if kubelet.is_registered:
            return None
        return kubelet.registration.error or "the kubelet has not registered the plugin yet"

    return problem


def published(publisher: Publisher) -> Check:
    """The API server has the slices that the node should have."""

    def problem() -> str | None:
        state = publisher.state
        return None if state.is_published else state.error or "the slices are being written"

    return problem


def recorded(store: Store, held: HeldClaims[Any]) -> Check:
    """Claims can be recorded, and all that is held is known."""
    return lambda: store.problem or held.doubt or None
