# SPDX-License-Identifier: Apache-2.0
"""What the reference driver leaves on a node: claims that it has answered, each with a CDI spec."""

from pathlib import Path

import yaml
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime._generated.dra.v1 import api_pb2

from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node.rig import Rig

KIND = "k8s.gpu.nvidia.com/claim"


def name_of(claim: ClaimRef, device: str) -> str:
    """The name of a device in the claim's spec."""
    return f"{claim.uid}-{device}"


def spec_of(rig: Rig, claim: ClaimRef) -> Path:
    """The claim's spec."""
    return rig.node.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.yaml"


def checkpoint(rig: Rig) -> Path:
    """The reference driver's own checkpoint."""
    return rig.plugin_dir / "checkpoint.json"


def hold(rig: Rig, kubelet: CheckpointFile, device: str) -> ClaimRef:
    """A claim as the reference driver leaves it: answered, with a spec of its own."""
    claim = rig.create_claim(device)
    answer = api_pb2.NodePrepareResourceResponse(
        devices=[
            api_pb2.Device(
                request_names=["gpu"],
                pool_name=rig.node.name,
                device_name=device,
                cdi_device_ids=[f"{KIND}={name_of(claim, device)}"],
            )
        ]
    )
    kubelet.add_claim(claim, answer)
    edits = {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    document = {
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "devices": [{"name": name_of(claim, device), "containerEdits": edits}],
        "containerEdits": {},
    }
    rig.node.cdi.mkdir(parents=True, exist_ok=True)
    spec_of(rig, claim).write_text(yaml.safe_dump(document, explicit_start=True))
    rig.plugin_dir.mkdir(parents=True, exist_ok=True)
    checkpoint(rig).write_text('{"checksum":1,"v1":{"preparedClaims":{}}}')
    return claim
