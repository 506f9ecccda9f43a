# SPDX-License-Identifier: Apache-2.0
"""Claims that the reference driver has prepared keep their names until they are unprepared."""

from typing import Any

import yaml
from nvdra_api.resource.claims import ClaimRef
from nvdra_testing.kubelet.checkpoint_file import CheckpointFile
from nvdra_testing.node.reference_claims import KIND, checkpoint, hold, name_of, spec_of
from nvdra_testing.node.rig import Rig, cdi_names


async def answer(rig: Rig, claim: ClaimRef, **how: Any) -> Any:
    return (await rig.dra.prepare([claim], **how))[claim.uid]


async def test_a_claim_of_the_reference_driver_is_answered_as_before_until_it_is_unprepared(
    rig: Rig,
) -> None:
    kubelet = CheckpointFile(rig.node.kubelet)
    first, second = hold(rig, kubelet, "gpu-0"), hold(rig, kubelet, "gpu-1")
    await rig.start()
    await rig.wait_until(lambda: len(rig.recorded_claims()) == 2, "the records")
    again = await answer(rig, first)
    assert not again.error
    assert list(cdi_names(again)) == [f"{KIND}={name_of(first, 'gpu-0')}"]
    wanted = rig.create_claim("gpu-0")
    refused = await answer(rig, wanted, timeout_s=4)
    assert refused.error.startswith(f"DeviceInUse: gpu-0 is held by claim default/{first.name}")

    assert not (await rig.dra.unprepare([first]))[first.uid].error
    await rig.wait_until(lambda: not spec_of(rig, first).exists(), "its spec to go")
    assert spec_of(rig, second).exists()
    assert checkpoint(rig).exists(), "the other claim is still prepared"
    assert not (await answer(rig, wanted)).error
    assert not (await rig.dra.unprepare([second]))[second.uid].error
    await rig.wait_until(lambda: not spec_of(rig, second).exists(), "the last spec to go")
    await rig.wait_until(lambda: not checkpoint(rig).exists(), "the checkpoint to go")


async def test_its_spec_is_written_again_under_its_names_if_it_is_gone(rig: Rig) -> None:
    """/var/run/cdi is a tmpfs, and kubelets before 1.37 keep the old answer after a reboot."""
    kubelet = CheckpointFile(rig.node.kubelet)
    lost, other = hold(rig, kubelet, "gpu-0"), hold(rig, kubelet, "gpu-1")
    spec_of(rig, lost).unlink()
    kept = spec_of(rig, other).read_text()
    await rig.start()
    await rig.wait_until(spec_of(rig, lost).exists, "the spec of the lost one")
    document = yaml.safe_load(spec_of(rig, lost).read_text())
    assert document["kind"] == KIND
    (device,) = document["devices"]
    assert device["name"] == name_of(lost, "gpu-0")
    nodes = {node["path"] for node in device["containerEdits"]["deviceNodes"]}
    assert "/dev/nvidia0" in nodes
    assert "/dev/nvidia1" not in nodes
    assert document["containerEdits"]["mounts"], "the driver's libraries"
    assert spec_of(rig, other).read_text() == kept, "what is there is left as it is"
    spec_of(rig, lost).unlink()
    assert not (await answer(rig, lost)).error
    assert spec_of(rig, lost).exists(), "a prepare does not wait for the next check"


async def test_what_the_reference_driver_left_of_claims_that_are_gone_is_removed(rig: Rig) -> None:
    kubelet = CheckpointFile(rig.node.kubelet)
    gone = hold(rig, kubelet, "gpu-0")
    kubelet.remove_claim(gone)
    await rig.start()
    await rig.wait_until(lambda: not spec_of(rig, gone).exists(), "its spec to go")
    await rig.wait_until(lambda: not checkpoint(rig).exists(), "the checkpoint to go")
    assert not (await answer(rig, rig.create_claim("gpu-0"))).error
