# SPDX-License-Identifier: Apache-2.0
"""The device metadata files and their CDI specs, byte by byte, as KEP-5304 has them."""

import json
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.ids import ClaimUID, DeviceName, MigUUID, PciAddress, PoolName
from nvdra_cdi import files
from nvdra_cdi.errors import ValidationError
from nvdra_gpu_plugin.cdi import metadata_content
from nvdra_gpu_plugin.devices.claim_records import (
    ClaimMetadataRecord,
    DeviceMetadataRecord,
    GpuClaimRecord,
    GpuDeviceRecord,
)

UID = ClaimUID("5f0b7c1e-2d64-4a0f-9e55-7c0d9a4f31b2")
PLUGIN_DIR, CDI_ROOT = Path("/var/lib/kubelet/plugins/gpu.nvidia.com"), Path("/var/run/cdi")
CLAIM_DIR = PLUGIN_DIR / "dra-device-metadata/ml_train-gpu-x7k2p"
NAME = {"productName": {"string": "NVIDIA H100 80GB HBM3"}}


def device(
    name: str, request: str, attributes: dict[str, Any] | None = None, **fields: Any
) -> GpuDeviceRecord:
    return GpuDeviceRecord(
        request=request.partition("/")[0],
        pool=PoolName("node-a"),
        device=DeviceName(name),
        **{"pci": PciAddress("0000:00:00.0"), "uuid": f"UUID-{name}", "cdi_id": "v/c=d", **fields},
        metadata=DeviceMetadataRecord(request=request, attributes=attributes or {}),
    )


def record(*devices: GpuDeviceRecord, pod_claim_name: str = "", generation: int = 1) -> Any:
    return GpuClaimRecord(
        namespace="ml",
        name="train-gpu-x7k2p",
        uid=UID,
        generation="580.95.05",
        devices=devices,
        metadata=ClaimMetadataRecord(pod_claim_name=pod_claim_name, generation=generation),
    )


def objects(data: bytes) -> list[dict[str, Any]]:
    """Every object of a stream."""
    decoder, text, found = json.JSONDecoder(), data.decode(), []
    while text:
        each, end = decoder.raw_decode(text)
        found.append(each)
        text = text[end:].lstrip()
    return found


EXPECTED = """\
{
  "kind": "DeviceMetadata",
  "apiVersion": "metadata.resource.k8s.io/VERSION",
  "metadata": {
    "name": "train-gpu-x7k2p",
    "namespace": "ml",
    "uid": "5f0b7c1e-2d64-4a0f-9e55-7c0d9a4f31b2",
    "generation": 1
  },
  "podClaimName": "gpu",
  "requests": [
    {
      "name": "gpu/large",
      "devices": [
        {
          "driver": "gpu.nvidia.com",
          "pool": "node-a",
          "name": "gpu-0",
          "attributes": {
            "productName": {
              "string": "NVIDIA H100 80GB HBM3"
            }
          }
        }
      ]
    }
  ]
}
"""


def test_a_file_is_a_stream_of_the_same_data_in_each_version_newest_first() -> None:
    found = metadata_content.documents(
        record(device("gpu-0", "gpu/large", NAME), pod_claim_name="gpu"), PLUGIN_DIR
    )
    text = EXPECTED.replace("VERSION", "v1beta1") + EXPECTED.replace("VERSION", "v1alpha1")
    assert found == {CLAIM_DIR / "gpu/metadata.json": text.encode()}


def test_each_request_has_a_file_with_its_devices_alone() -> None:
    claim = record(device("gpu-0", "a"), device("gpu-1", "b/x"), device("gpu-2", "a"))
    found = metadata_content.documents(claim, PLUGIN_DIR)
    names = {
        path.parent.name: [
            (request["name"], [each["name"] for each in request["devices"]])
            for request in objects(data)[0]["requests"]
        ]
        for path, data in found.items()
    }
    assert names == {"a": [("a", ["gpu-0", "gpu-2"])], "b": [("b/x", ["gpu-1"])]}


def test_what_is_not_known_is_left_out() -> None:
    (data,) = metadata_content.documents(record(device("gpu-0", "gpu")), PLUGIN_DIR).values()
    for each in objects(data):
        assert "podClaimName" not in each
        assert each["requests"][0]["devices"] == [
            {"driver": "gpu.nvidia.com", "pool": "node-a", "name": "gpu-0"}
        ]


def test_a_mig_device_that_was_made_has_its_uuid_and_another_has_the_published_one() -> None:
    made = device("m", "gpu", NAME, uuid=MigUUID("MIG-2"), kind="mig", memory_slices=(4, 4))
    not_yet = made.model_copy(update={"uuid": ""})
    shown = [
        objects(data)[0]["requests"][0]["devices"][0]["attributes"]
        for each in (made, not_yet, device("gpu-0", "gpu", NAME))
        for data in metadata_content.documents(record(each), PLUGIN_DIR).values()
    ]
    assert shown == [{**NAME, "uuid": {"string": "MIG-2"}}, NAME, NAME]


@pytest.mark.parametrize(
    ("pod_claim_name", "directory"),
    [("", "resourceclaims/train-gpu-x7k2p"), ("gpu", "resourceclaimtemplates/gpu")],
)
def test_the_spec_mounts_the_file_where_the_pod_expects_it(
    pod_claim_name: str, directory: str
) -> None:
    claim = record(device("gpu-0", "a/x"), pod_claim_name=pod_claim_name)
    found = metadata_content.specs(claim, PLUGIN_DIR, CDI_ROOT)
    ((path, data),) = found.items()
    assert path == CDI_ROOT / f"gpu.nvidia.com_metadata_{UID}_a.json"
    spec = files.decode(data)
    assert spec.kind == "gpu.nvidia.com/metadata"
    (cdi_device,) = spec.devices
    assert cdi_device.name == f"{UID}_a"
    (mount,) = cdi_device.container_edits.mounts
    assert mount.host_path == str(CLAIM_DIR / "a/metadata.json")
    root = "/var/run/kubernetes.io/dra-device-attributes"
    assert mount.container_path == f"{root}/{directory}/a/gpu.nvidia.com-metadata.json"
    assert mount.options == ("ro", "bind")


def test_a_claim_without_metadata_has_no_files() -> None:
    claim = record(device("gpu-0", "a")).model_copy(update={"metadata": None})
    assert metadata_content.documents(claim, PLUGIN_DIR) == {}
    assert metadata_content.specs(claim, PLUGIN_DIR, CDI_ROOT) == {}


def test_a_request_whose_name_no_cdi_document_can_have_is_an_error() -> None:
    with pytest.raises(ValidationError):
        metadata_content.specs(record(device("gpu-0", "a b")), PLUGIN_DIR, CDI_ROOT)
