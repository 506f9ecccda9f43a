# SPDX-License-Identifier: Apache-2.0
"""Converts the messages of the kubelet's DRA service from and to values."""

from collections.abc import Mapping, Sequence

from nvdra_api import texts
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef

from nvdra_runtime._generated.dra.v1 import api_pb2
from nvdra_runtime.claims.prepare_result import PreparedDevice, PrepareResult

_NO_RESULT = "Internal: the driver gave no answer for this claim; look for the call in its log"


def claim_refs(
    request: api_pb2.NodePrepareResourcesRequest | api_pb2.NodeUnprepareResourcesRequest,
) -> tuple[ClaimRef, ...]:
    """The claims of a request."""
    return tuple(
        ClaimRef(claim.namespace, claim.name, ClaimUID(claim.uid)) for claim in request.claims
    )


def prepare_response(
    claims: Sequence[ClaimRef],
    results: Mapping[ClaimUID, PrepareResult | str],
    *,
    with_share_ids: bool,
) -> api_pb2.NodePrepareResourcesResponse:
    """The response with the devices, or the error, of every claim."""
    response = api_pb2.NodePrepareResourcesResponse()
    for claim in claims:
        result = results.get(claim.uid, _NO_RESULT)
        entry = response.claims[claim.uid]  # creates the entry
        if isinstance(result, str):
            entry.error = texts.encodable(result)
        else:
            entry.devices.extend(_device(device, with_share_ids) for device in result.devices)
    return response


def unprepare_response(
    claims: Sequence[ClaimRef], errors: Mapping[ClaimUID, str | None]
) -> api_pb2.NodeUnprepareResourcesResponse:
    """The response with the error of every claim; empty for success."""
    response = api_pb2.NodeUnprepareResourcesResponse()
    for claim in claims:
        error = errors.get(claim.uid, _NO_RESULT) or ""
        response.claims[claim.uid].error = texts.encodable(error)
    return response


def _device(device: PreparedDevice, with_share_ids: bool) -> api_pb2.Device:
    return api_pb2.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id if with_share_ids else None,
    )
