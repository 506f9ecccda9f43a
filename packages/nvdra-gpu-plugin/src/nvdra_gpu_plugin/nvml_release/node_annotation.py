# SPDX-License-Identifier: Apache-2.0
"""Watches the annotation of this node's Node that asks for a release of NVML."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from nvdra_api import names
from nvdra_api.ids import NodeName
from nvdra_api.meta import JsonObject
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.informer import Informer, fixed_path

_NODES: Final = "/api/v1/nodes"


class NodeAnnotation:
    """The annotation of one Node."""

    def __init__(
        self,
        node: NodeName,
        api: Client,
        on_change: Callable[[], None],
        on_watch_restart: Callable[[str], None],
    ) -> None:
        """Create it without any request.

        Args:
            node: This node.
            api: The API server.
            on_change: Called when the Node has changed, or is known for the first time.
            on_watch_restart: Called when the watch starts again.
        """
        self._node = node
        self._informer = Informer(
            api,
            fixed_path(_NODES),
            {"fieldSelector": f"metadata.name={node}"},
            on_watch_restart,
            on_change=lambda _: on_change(),
            transform=_trim_to_annotation,
        )

    @property
    def value(self) -> str | None:
        """The annotation's value, empty if the Node has none; None while it is not known."""
        stored = self._informer.get(self._node)
        if stored is None:
            return None
        return str(stored["metadata"]["annotations"].get(names.RELEASE_NVML_ANNOTATION, ""))

    def running(self) -> AbstractAsyncContextManager[Informer]:
        """Watch while the block runs."""
        return self._informer.running()


def _trim_to_annotation(node: JsonObject) -> JsonObject:
    """Keep the annotation only: a Node is large and changes often."""
    metadata = node["metadata"]
    annotations = metadata.get("annotations") or {}
    key = names.RELEASE_NVML_ANNOTATION
    kept = {key: annotations[key]} if key in annotations else {}
    identity = {key: metadata[key] for key in ("name", "uid", "resourceVersion")}
    return {"metadata": {**identity, "annotations": kept}}
