# SPDX-License-Identifier: Apache-2.0
"""KubeVirt's own code finds the GPU of a virtual machine in the device metadata files.

`kubevirt_reader` is built with `kubevirt.io/kubevirt/pkg/dra`, by which virt-launcher finds it.
KubeVirt 1.8 reads other files than KEP-5304 has, in another directory and with one object instead
of a stream, so that 1.9 is the first release that can be used.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from nvdra_api.ids import ClaimUID, NodeName, PoolName
from nvdra_api.resource.claims import ResourceClaim
from nvdra_cdi.cache import Cache
from nvdra_gpu_plugin.cdi.metadata_files import MetadataFiles
from nvdra_gpu_plugin.claims import metadata_plan
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.vfio_devices import VfioDevice
from nvdra_testing.hardware.gpus import vfio_h100

SOURCE = Path(__file__).parent / "kubevirt_reader"
NODE = NodeName("node-a")
UID = ClaimUID("5f0b7c1e-2d64-4a0f-9e55-7c0d9a4f31b2")
NAME = "vm-gpu-x7k2p"
FROM_TEMPLATE = {"resource.kubernetes.io/pod-claim-name": "my-gpu"}
BUILD_TIMEOUT_S = 900
"""The first build downloads KubeVirt and compiles what it needs of Kubernetes' API."""

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="KubeVirt's code is in Go")

Reader = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that looks a device up as virt-launcher does."""
    built = tmp_path_factory.mktemp("kubevirt") / "reader"
    subprocess.run(
        ["go", "build", "-o", str(built), "."], cwd=SOURCE, check=True, timeout=BUILD_TIMEOUT_S
    )
    return built


@pytest.fixture
def read(program: Path, tmp_path: Path) -> Reader:
    """Run KubeVirt's code in a container that has the metadata of these devices."""

    def of(
        *devices: tuple[str, VfioDevice], claim: str = "", request: str = "gpu-0"
    ) -> subprocess.CompletedProcess[str]:
        root = container(tmp_path, devices, from_template=not claim)
        directory = root / "var/run/kubernetes.io/dra-device-attributes"
        argv = [str(program), str(directory), "my-gpu", claim, request]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    return of


def container(
    folder: Path, devices: tuple[tuple[str, VfioDevice], ...], *, from_template: bool
) -> Path:
    """The root directory of a container with all requests of the claim."""
    plugin_dir, cdi_root, root = folder / "plugin", folder / "cdi", folder / "container"
    cdi_root.mkdir()
    claim = ResourceClaim.model_validate(
        {
            "metadata": {
                "namespace": "vms",
                "name": NAME,
                "uid": UID,
                "annotations": FROM_TEMPLATE if from_template else {},
            },
            "status": {
                "allocation": {
                    "devices": {
                        "results": [
                            {
                                "request": request,
                                "driver": "gpu.nvidia.com",
                                "pool": NODE,
                                "device": vfio.name,
                            }
                            for request, vfio in devices
                        ]
                    }
                }
            },
        }
    )
    record = GpuClaimRecord(
        namespace="vms",
        name=NAME,
        uid=UID,
        generation="580.95.05",
        devices=tuple(
            GpuDeviceRecord(
                request=request,
                pool=PoolName(NODE),
                device=vfio.name,
                pci=vfio.pci,
                uuid=vfio.uuid,
                kind=vfio.kind,
                cdi_id="k8s.gpu.nvidia.com/claim-device=d",
            )
            for request, vfio in devices
        ),
    )
    inventory = Inventory((), tuple(vfio for _, vfio in devices))
    described = metadata_plan.with_metadata(record, claim, inventory, numa_as_list=False)
    MetadataFiles(plugin_dir, cdi_root).write(described)
    names = [name for device in described.devices for name in device.cdi_ids[1:]]
    for mount in Cache([str(cdi_root)]).resolve(names).mounts:
        path = root / mount.container_path.lstrip("/")
        path.parent.mkdir(parents=True)
        shutil.copy(mount.host_path, path)
    return root


def test_kubevirt_finds_the_gpu_of_a_claim_from_a_template(read: Reader) -> None:
    found = read(("gpu-0", vfio_h100(3)))
    assert (found.stdout, found.stderr) == ("0000:03:00.0\n", "")


def test_kubevirt_finds_the_gpu_of_a_claim_that_is_named(read: Reader) -> None:
    found = read(("gpu-0", vfio_h100(3)), claim=NAME)
    assert (found.stdout, found.stderr) == ("0000:03:00.0\n", "")


def test_each_request_of_a_claim_has_a_gpu_of_its_own(read: Reader) -> None:
    found = read(("gpu-0", vfio_h100(3)), ("gpu-1", vfio_h100(5)), request="gpu-1")
    assert (found.stdout, found.stderr) == ("0000:05:00.0\n", "")


def test_kubevirt_refuses_a_request_of_two_gpus(read: Reader) -> None:
    """The webhook warns of such a request."""
    found = read(("gpu-0", vfio_h100(3)), ("gpu-0", vfio_h100(5)))
    assert found.returncode == 1
    assert "2 devices but KubeVirt only supports exactly one device per request" in found.stderr
