# SPDX-License-Identifier: Apache-2.0
"""Files on the node that our programs read when they start, and that others may have damaged."""

import json
import sqlite3
import zlib
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from nvdra_api.errors import DriverError
from nvdra_api.ids import ClaimUID, CliqueID, NodeName, PodUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_cd_plugin.fabric.known_clique import KnownClique
from nvdra_cd_plugin.fabric.nvml_query import FabricPolicy
from nvdra_cd_plugin.node.reference_checkpoint import ReferenceCheckpoint
from nvdra_gpu_plugin.device_plugin.allocation_file import (
    FILE,
    AllocationFile,
    AllocationsUnreadable,
)
from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord
from nvdra_gpu_plugin.health import health_file, vfio_health
from nvdra_gpu_plugin.passthrough.pci_health import PciLook
from nvdra_imex_daemon.membership.index_file import IndexFile
from nvdra_runtime.claims.kubelet_checkpoint import (
    CHECKPOINT_FILE,
    CheckpointUnreadable,
    KubeletCheckpoint,
)
from nvdra_runtime.kubeletplugin import nvml_release
from nvdra_runtime.node import corrupt_files, record_database
from nvdra_runtime.node.host import Host
from nvdra_runtime.node.instance_lock import InstanceLock
from nvdra_runtime.node.record_database import StoredRecord
from pydantic import ValidationError

from nvdra_testing.fuzzing import documents, function_target

_CLAIM: Final = "11111111-2222-4333-8444-555555555555"
_BOOT: Final = "b2f5f7a6-0000-4000-8000-000000000001"
_HERE: Final = Path()
"""The child has a directory of its own, in memory."""


def _bytes(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


_KUBELET: Final = {
    "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
    "ClaimInfoStateList": [
        {
            "DriverState": {
                "gpu.nvidia.com": {
                    "Devices": [
                        {
                            "PoolName": "node-1",
                            "DeviceName": "gpu-0",
                            "ShareID": None,
                            "RequestNames": ["gpu"],
                            "CDIDeviceIDs": ["nvidia.com/gpu=gpu-0"],
                        }
                    ]
                }
            },
            "ClaimUID": _CLAIM,
            "ClaimName": "train",
            "Namespace": "team",
            "PodUIDs": [_BOOT],
        }
    ],
}


@st.composite
def _checkpoints(draw: DrawFn) -> bytes:
    """The kubelet's form: the data as a text, with its checksum, which mostly is right."""
    data = draw(documents.mutations([_KUBELET]))
    if draw(st.integers(0, 3)) == 0:
        text = data.decode(errors="replace")
        return draw(documents.mutations([{"Data": text, "Checksum": zlib.crc32(data)}]))
    text = data.decode(errors="replace")
    return _bytes({"Data": text, "Checksum": zlib.crc32(text.encode())})[0]


def kubelet_checkpoint(case: bytes) -> None:
    (_HERE / "pods").mkdir(exist_ok=True)
    (_HERE / CHECKPOINT_FILE).write_bytes(case)
    checkpoint = KubeletCheckpoint(_HERE)
    with suppress(CheckpointUnreadable):
        for uid, claim in checkpoint.claims().items():
            claim.devices("gpu.nvidia.com")
            checkpoint.find_users(ClaimUID(uid), [PodUID("p"), *claim.pods])
    with suppress(CheckpointUnreadable):
        checkpoint.find_users(ClaimUID(_CLAIM), [])


_DEVICE_PLUGINS: Final = {
    "Data": {
        "PodDeviceEntries": [
            {
                "PodUID": _BOOT,
                "ContainerName": "c",
                "ResourceName": "nvidia.com/gpu",
                "DeviceIDs": {"0": ["GPU-1"]},
                "AllocResp": "AA==",
            }
        ],
        "RegisteredDevices": {"nvidia.com/gpu": ["GPU-1", "GPU-2"], "nvidia.com/mig-1g": None},
    },
    "Checksum": 1,
}


def device_plugin_checkpoint(case: bytes) -> None:
    path = _HERE / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(case)
    with suppress(AllocationsUnreadable):
        AllocationFile(_HERE).read()


_REFERENCE: Final = {
    "checksum": 7,
    "v1": {"preparedClaims": {_CLAIM: [{"cdi": ["a"]}]}},
    "v2": {"preparedClaims": {_CLAIM: {"status": {}, "preparedDevices": []}}},
}


def reference_checkpoint(case: bytes) -> None:
    (_HERE / "checkpoint.json").write_bytes(case)
    ReferenceCheckpoint(_HERE).remove_unless_used([ClaimUID(_CLAIM)])


_CLIQUE: Final = {
    "boot_id": _BOOT,
    "policy": {"is_strict": True, "tolerates_unfinished": False, "requires_dns_names": True},
    "clique": "a.1",
}


def clique_file(case: bytes) -> None:
    boot = _HERE / "proc/sys/kernel/random/boot_id"
    if not boot.exists():
        boot.parent.mkdir(parents=True)
        boot.write_text(_BOOT)
    (_HERE / "clique.json").write_bytes(case)
    KnownClique(
        _HERE,
        Host(proc=_HERE / "proc"),
        FabricPolicy(is_strict=True, tolerates_unfinished=False, requires_dns_names=True),
    ).read()


def index_file(case: bytes) -> None:
    path = _HERE / "index.json"
    path.write_bytes(case)
    found = IndexFile(path, CliqueID("a.1")).read()
    assert found is None or isinstance(found, int)


def gpu_health_file(case: bytes) -> None:
    (_HERE / "gpu-health.json").write_bytes(case)
    health_file.GPUS.read(_HERE, _BOOT)


_VFIO_HEALTH: Final = {
    "boot_id": _BOOT,
    "gpus": {
        "0000:3b:00.0": {
            "counted_errors": 2,
            "faults": {
                "silent": {
                    "phase": "healing",
                    "since": "2026-01-01T00:00:00Z",
                    "healing_since": "2026-01-01T00:01:00Z",
                    "value": "pci-silent",
                },
                "narrow-link": {"phase": "suspected", "since": "2026-01-01T00:00:00Z"},
            },
        }
    },
}


def vfio_health_file(case: bytes) -> None:
    (_HERE / "vfio-health.json").write_bytes(case)
    for health in health_file.VFIO_GPUS.read(_HERE, _BOOT).values():
        now = datetime(2026, 1, 1, 0, 30, tzinfo=UTC)
        vfio_health.taints(vfio_health.after_look(health, PciLook(False, 8, 16, 3), now), True)


_RELEASE: Final = {
    "release": {
        "origin": "command",
        "since": "2026-01-01T00:00:00Z",
        "until": "2026-01-01T01:00:00Z",
        "is_forced": False,
    },
    "annotation": "true",
}


def nvml_release_file(case: bytes) -> None:
    (_HERE / nvml_release.FILE_NAME).write_bytes(case)
    release = nvml_release.in_force(_HERE, datetime(2026, 1, 1, 0, 30, tzinfo=UTC))
    if release is not None:
        str(nvml_release.error(release, NodeName("node-1"))).encode()


def instance_lock_file(case: bytes) -> None:
    path = _HERE / "lock"
    path.write_bytes(case)
    str(InstanceLock(path, {}).read_holder()).encode()


_RECORD: Final = {
    "namespace": "team",
    "name": "train",
    "uid": _CLAIM,
    "pods": [_BOOT],
    "pod_names": ["p"],
    "generation": "580.95.05",
    "steps_boot": _BOOT,
    "devices": [
        {
            "request": "gpu",
            "pool": "node-1",
            "device": "gpu-0",
            "pci": "0000:19:00.0",
            "uuid": "GPU-8c1b8e7d-2f5c-5d54-8a7e-f2a4f8c0e211",
            "cdi_id": "nvidia.com/gpu=gpu-0",
            "memory_slices": [0, 4],
            "metadata": {"request": "gpu", "attributes": {"productName": {"string": "H100"}}},
        }
    ],
    "steps": [
        {"step": "share-by-time", "gpu": "GPU-1", "device": "gpu-0", "interval": "Long"},
        {
            "step": "share-by-mps",
            "gpu": "GPU-1",
            "device": "gpu-0",
            "devices": ["gpu-0"],
            "default_limit": "1Gi",
            "device_limits": {"0": "512Mi"},
        },
    ],
    "metadata": {"pod_claim_name": "gpu", "generation": 1},
}


def claim_record(case: bytes) -> None:
    """The payload of a record in the state file."""
    text = case.decode(errors="replace")
    try:
        record = GpuClaimRecord.model_validate_json(text)
    except ValidationError as error:
        str(error.errors(include_url=False, include_input=False)[0]["msg"]).encode()
        return
    record.model_dump_json().encode()
    for device in record.devices:
        " ".join((*device.cdi_ids, device.display_name, device.wait_key)).encode()
    record.begun(_BOOT).with_steps(record.steps)


def _state_file() -> bytes:
    """A state file with a record."""
    path = Path("/dev/shm") / f"nvdra-fuzz-{id(object())}.sqlite"
    now = datetime(2026, 1, 1, tzinfo=UTC)
    record = StoredRecord(
        ClaimRef("team", "train", ClaimUID(_CLAIM)),
        "prepared",
        _BOOT,
        now,
        now,
        json.dumps(_RECORD),
    )
    try:
        record_database._create(path, record_database.put_record(record, has_started=False))
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


def state_file(case: bytes) -> None:
    """The SQLite file. What is not readable is moved aside, and a new one is made."""
    path = _HERE / record_database.FILE_NAME
    for left in _HERE.glob(f"{record_database.FILE_NAME}*"):
        left.unlink()
    path.write_bytes(case)
    with suppress(DriverError):
        record_database.check_readable(path)
    with suppress(DriverError):
        opened = record_database.open_or_replace_corrupt(
            path, _BOOT, datetime(2026, 1, 1, tzinfo=UTC)
        )
        opened.connection.close()


def recovery_marker(case: bytes) -> None:
    path = _HERE / record_database.FILE_NAME
    corrupt_files.marker_path(path).write_bytes(case)
    corrupt_files.read_marker(path, _BOOT)


_HEALTH: Final = {
    "boot_id": _BOOT,
    "gpus": {"GPU-1": {"cause": None, "recovery": None, "loss": None}},
}
_STATE_FILE: Final = _state_file()

TARGETS: Final = (
    function_target.target(state_file, documents.damaged_bytes([_STATE_FILE]), [_STATE_FILE], 0.5),
    function_target.target(kubelet_checkpoint, _checkpoints(), _bytes({"Data": "", "Checksum": 0})),
    *(
        function_target.target(function, documents.mutations([valid]), _bytes(valid), 0.5)
        for function, valid in (
            (device_plugin_checkpoint, _DEVICE_PLUGINS),
            (reference_checkpoint, _REFERENCE),
            (clique_file, _CLIQUE),
            (index_file, {"cliqueID": "a.1", "index": 3}),
            (gpu_health_file, _HEALTH),
            (vfio_health_file, _VFIO_HEALTH),
            (nvml_release_file, _RELEASE),
            (instance_lock_file, {"pid": "7", "host": "node-1"}),
            (claim_record, _RECORD),
            (recovery_marker, {"file": "/a/state.sqlite", "boot_id": _BOOT}),
        )
    ),
)
