# SPDX-License-Identifier: Apache-2.0
"""The device metadata of a claim: files and CDI specs that follow from its record."""

import json
from pathlib import Path
from typing import Any, Final

from nvdra_cdi.errors import CDIError
from nvdra_gpu_plugin.cdi import metadata_content
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from pydantic import ValidationError

from nvdra_testing.fuzzing import documents, function_target

_RECORD: Final[dict[str, Any]] = {
    "namespace": "team",
    "name": "train",
    "uid": "11111111-2222-4333-8444-555555555555",
    "generation": "580.95.05",
    "devices": [
        {
            "request": "gpu",
            "pool": "node-1",
            "device": "gpu-0",
            "pci": "0000:19:00.0",
            "uuid": "GPU-8c1b8e7d-2f5c-5d54-8a7e-f2a4f8c0e211",
            "cdi_id": "nvidia.com/gpu=gpu-0",
            "metadata": {
                "request": "gpu/sub",
                "attributes": {"productName": {"string": "H100"}, "minor": {"int": 0}},
                "cdi_id": "nvidia.com/metadata=x",
            },
        }
    ],
    "metadata": {"pod_claim_name": "gpu", "generation": 1},
}


def device_metadata(case: bytes) -> None:
    """What tenants choose is in it: names of claims, requests and pods' claims."""
    try:
        record = GpuClaimRecord.model_validate_json(case)
    except ValidationError:
        return
    for content in metadata_content.documents(record, Path("/plugin")).values():
        assert content
    try:
        metadata_content.specs(record, Path("/plugin"), Path("/cdi"))
    except CDIError as error:
        str(error).encode(errors="backslashreplace")


TARGETS: Final = (
    function_target.target(
        device_metadata, documents.mutations([_RECORD]), [json.dumps(_RECORD).encode()]
    ),
)
