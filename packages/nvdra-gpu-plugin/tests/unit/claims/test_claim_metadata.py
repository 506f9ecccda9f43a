# SPDX-License-Identifier: Apache-2.0
"""The device metadata of a claim is written before it is prepared, and gone when it is not."""

import json
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nvdra_api.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import ClaimUID
from nvdra_runtime.process import background_tasks
from nvdra_testing import polling
from nvdra_testing.node.divisible_node import DivisibleNode, Plugin

WHOLE, LARGE, SMALL = "gpu-1", "gpu-0-mig-3g40gb-9-4", "gpu-0-mig-1g10gb-19-0"
UID = ClaimUID("uid-1")


@pytest.fixture
def node(tmp_path: Path) -> DivisibleNode:
    return DivisibleNode(tmp_path, FeatureGates.parse("DeviceMetadata=true,DynamicMIG=true"))


def path(node: DivisibleNode, claim: str = "claim-1") -> Path:
    return node.root / f"dra-device-metadata/ml_{claim}/mig/metadata.json"


def spec(node: DivisibleNode, uid: str = UID) -> Path:
    return node.cdi / f"gpu.nvidia.com_metadata_{uid}_mig.json"


def shown(node: DivisibleNode) -> tuple[int, dict[str, str]]:
    """The generation of a claim's metadata, and the UUID of each device."""
    found, _ = json.JSONDecoder().raw_decode(path(node).read_text())
    devices = [each for request in found["requests"] for each in request["devices"]]
    return found["metadata"]["generation"], {
        each["name"]: each["attributes"]["uuid"]["string"] for each in devices
    }


def has_files(node: DivisibleNode) -> bool:
    assert path(node).exists() == spec(node).exists()
    return path(node).exists()


async def test_a_claim_is_answered_with_its_metadata_and_always_the_same(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        answer = await plugin.prepare(WHOLE, LARGE)
        assert [each.cdi_ids[1:] for each in answer.devices] == [
            (f"gpu.nvidia.com/metadata={UID}_mig",),
            (),
        ]
        assert shown(node) == (1, {WHOLE: "GPU-1", LARGE: "MIG-GPU-0-2-0"})
        path(node).unlink()
        assert await plugin.prepare(WHOLE, LARGE) == answer
        assert has_files(node), "it is looked at again"
        await plugin.unprepare()
        assert not has_files(node)
        assert node.is_clean()


@pytest.mark.parametrize("device", [WHOLE, LARGE])
async def test_without_the_gate_there_is_none_and_a_claim_that_has_some_keeps_it(
    node: DivisibleNode, device: str
) -> None:
    async with node.opened() as plugin:
        before = await plugin.prepare(device)
    node.gates = FeatureGates.parse("DynamicMIG=true")
    async with node.opened() as plugin:
        assert await plugin.prepare(device) == before
        assert has_files(node)
        await plugin.unprepare()
        assert not has_files(node)
        (without,) = (await plugin.prepare(device)).devices
        assert len(without.cdi_ids) == 1
        assert not has_files(node)


@pytest.mark.parametrize("device", [WHOLE, LARGE])
async def test_a_claim_whose_metadata_cannot_be_written_is_refused_and_has_nothing(
    node: DivisibleNode, device: str
) -> None:
    (node.root / "dra-device-metadata").touch()
    async with node.opened() as plugin:
        with pytest.raises(PermanentError, match="device metadata of claim ml/claim-1") as caught:
            await plugin.prepare(device)
        assert caught.value.reason is Reason.DEVICE_NODE_MISSING
        assert dict(plugin.prepared) == {}
        assert plugin.engine.left_over == []
        assert node.is_clean()
        (node.root / "dra-device-metadata").unlink()
        await plugin.prepare(device)
        assert has_files(node)


async def test_metadata_that_cannot_be_removed_keeps_no_place_of_a_refused_claim(
    node: DivisibleNode,
) -> None:
    spec(node).mkdir(parents=True)
    async with node.opened() as plugin:
        with pytest.raises(PermanentError, match="device metadata of claim ml/claim-1"):
            await plugin.prepare(LARGE)
        assert plugin.engine.left_over == []
        assert node.is_clean()


@pytest.mark.parametrize("device", [WHOLE, LARGE])
async def test_a_claim_that_cannot_be_recorded_leaves_no_metadata(
    node: DivisibleNode, device: str
) -> None:
    async with node.opened() as plugin:
        with closing(sqlite3.connect(node.root / "state.sqlite")) as connection:
            connection.execute(
                "CREATE TRIGGER full BEFORE INSERT ON records "
                "BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
            )
        with pytest.raises(DriverError, match="the disk is full") as caught:
            await plugin.prepare(device)
        assert caught.value.reason is Reason.STATE_UNAVAILABLE
        for record in plugin.engine.left_over:
            await plugin.engine.revert(record)
        assert not has_files(node)
        assert node.is_clean()


async def test_a_claim_stays_prepared_until_its_metadata_is_gone(node: DivisibleNode) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(WHOLE)
        content = spec(node).read_bytes()
        spec(node).unlink()
        spec(node).mkdir()
        with pytest.raises(RetryableError, match="cannot be removed"):
            await plugin.unprepare()
        assert UID in plugin.prepared
        spec(node).rmdir()
        await plugin.prepare(WHOLE)
        assert spec(node).read_bytes() == content
        await plugin.unprepare()
        assert dict(plugin.prepared) == {}
        assert not has_files(node)


class Recovered:
    """What `run` needs of a `RecordRecovery`."""

    class _Done:
        async def wait(self) -> None:
            """Return at once."""

    done = _Done()


async def test_a_start_restores_what_is_missing_and_removes_what_nobody_has(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        await plugin.prepare(WHOLE)
        await plugin.prepare(SMALL, uid="uid-2")
        uids = shown(node)
    path(node).unlink()
    spec(node).unlink()
    killed = node.cdi / "gpu.nvidia.com_metadata_uid-3_mig.json"
    killed.write_bytes(spec(node, "uid-2").read_bytes())
    path(node, "claim-3").parent.mkdir(parents=True)
    async with node.opened() as plugin, running(plugin):
        await polling.wait_until(lambda: path(node).exists() and spec(node).exists())
        await polling.wait_until(
            lambda: not killed.exists() and not path(node, "claim-3").parent.exists()
        )
        assert shown(node) == uids
        assert path(node, "claim-2").exists()


def running(plugin: Plugin) -> Any:
    recovery: Any = Recovered()
    return background_tasks.running(metadata=partial(plugin.metadata.run, recovery))


async def test_the_metadata_of_a_device_that_is_made_again_is_there_before_it_and_after(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin:
        answer = await plugin.prepare(LARGE)
        first = shown(node)
    node.reboot()
    async with node.opened() as plugin, running(plugin):
        await polling.wait_until(spec(node).exists)
        assert await plugin.prepare(LARGE) == answer
        assert shown(node) == first, "the same place has the same UUID"


async def test_a_record_that_somebody_else_has_changed_is_written_without_a_call(
    node: DivisibleNode,
) -> None:
    async with node.opened() as plugin, running(plugin):
        await plugin.prepare(WHOLE)
        record = plugin.prepared[UID]
        assert record.metadata is not None
        metadata = record.metadata.model_copy(update={"generation": 7})
        await plugin.prepared.add(record.ref, record.model_copy(update={"metadata": metadata}))
        await polling.wait_until(lambda: shown(node)[0] == 7)
