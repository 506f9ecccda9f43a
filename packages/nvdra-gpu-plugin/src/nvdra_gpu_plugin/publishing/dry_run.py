"""Asks the API server whether it would keep a part of a slice, without storing the slice."""

from typing import Any

from nvdra_api import names
from nvdra_api.errors import PermanentError
from nvdra_api.ids import NodeName
from nvdra_api.meta import JsonObject
from nvdra_runtime.kube import apiversions
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import Refused
from nvdra_runtime.resourceslices import slice_spec
from nvdra_runtime.telemetry import logs

LOG = logs.logger(__name__)


async def keeps(
    api: Client, node: NodeName, part: JsonObject, api_gate: str, deadline: float
) -> bool:
    """Whether a slice would be stored with a part of it.

    If the dry run is refused, for example by an admission webhook that does not know it, the first
    slice tells.

    Args:
        api: The API server.
        node: This node.
        part: A part of a slice's spec, as in v1.
        api_gate: The feature gate of Kubernetes without which it is dropped.
        deadline: Monotonic seconds of the loop's clock.

    Raises:
        DriverError: The API server does not answer.
    """
    version = await api.dra_api_version(deadline)
    path = f"{apiversions.slices_path(version)}?dryRun=All"
    sent = _slice(node, part)
    try:
        stored = await api.create(path, apiversions.slice_to_version(version, sent), deadline)
    except (PermanentError, Refused) as error:
        LOG.warning("The API server refuses to check a slice", error=str(error))
        return True
    kept = apiversions.slice_from_version(version, stored)
    return api_gate not in slice_spec.dropped_fields(sent["spec"], kept["spec"])


def _slice(node: NodeName, part: JsonObject) -> dict[str, Any]:
    """A v1 slice with nothing but this part."""
    return {
        "metadata": {"generateName": f"dry-run-{names.GPU_DRIVER}-"},
        "spec": {
            "driver": names.GPU_DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            **part,
        },
    }
