# SPDX-License-Identifier: Apache-2.0
"""Admin access: any number of claims beside the holder of a GPU."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
from nvdra_api.ids import ClaimUID
from nvdra_api.resource.claims import ClaimRef
from nvdra_cdi import oci
from nvdra_cdi.cache import Cache
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig, cdi_names

Result = tuple[str, str, bool]
"""Request, device, whether it is for monitoring."""


async def answer(rig: Rig, claim: ClaimRef, **how: Any) -> Any:
    return (await rig.dra.prepare([claim], **how))[claim.uid]


def claim_of(rig: Rig, *results: Result) -> ClaimRef:
    """A claim with these results, each for the request it names."""
    requests = dict.fromkeys((request, is_admin) for request, _, is_admin in results)
    claim = rig.server.create(
        plugin.CLAIMS,
        {
            "metadata": {"name": f"claim-{uuid4().hex[:10]}"},
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": request,
                            "exactly": {
                                "deviceClassName": plugin.DRIVER,
                                **({"adminAccess": True} if is_admin else {}),
                            },
                        }
                        for request, is_admin in requests
                    ]
                }
            },
        },
    )
    name, node = claim["metadata"]["name"], rig.node.name
    selector = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    claim["status"] = {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "request": request,
                        "driver": plugin.DRIVER,
                        "pool": node,
                        "device": device,
                        **({"adminAccess": True} if is_admin else {}),
                    }
                    for request, device, is_admin in results
                ]
            },
            "nodeSelector": {"nodeSelectorTerms": [selector]},
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": str(uuid4())}],
    }
    rig.server.request("PUT", f"{plugin.CLAIMS}/{name}/status", claim)
    return ClaimRef("default", name, ClaimUID(claim["metadata"]["uid"]))


async def test_a_gpu_is_monitored_while_a_claim_has_it_and_had_while_it_is_monitored(
    rig: Rig,
) -> None:
    await rig.start()
    first, used, last = (
        rig.create_claim("gpu-0", admin=True),
        rig.create_claim("gpu-0"),
        rig.create_claim("gpu-0", admin=True),
    )
    for claim in (first, used, last):
        assert not await rig.dra.refusal(claim)
    assert (await rig.dra.refusal(rig.create_claim("gpu-0"))).startswith(
        f"DeviceInUse: gpu-0 is held by claim default/{used.name}"
    )
    # The monitors' end is not the user's.
    assert not any(e.error for e in (await rig.dra.unprepare([first, last])).values())
    assert set(rig.recorded_claims()) == {used.uid}


async def test_both_claims_for_one_gpu_in_one_container_name_it_once_and_the_same(
    rig: Rig,
) -> None:
    """The kubelet hands on both names; a runtime that is told one name twice must not care."""
    await rig.start()
    used, monitor = rig.create_claim("gpu-0"), rig.create_claim("gpu-0", admin=True)
    answers = await rig.dra.prepare([used, monitor])
    names = [*cdi_names(answers[used.uid]), *cdi_names(answers[monitor.uid])]
    assert len(names) == 2
    assert len(set(names)) == 1
    once, twice = _injected(rig, names[:1]), _injected(rig, names)
    nodes = [device["path"] for device in twice["linux"]["devices"]]
    assert "/dev/nvidia0" in nodes
    assert twice["linux"]["devices"] == once["linux"]["devices"]
    assert twice["mounts"] == once["mounts"]
    assert twice["process"] == once["process"]
    # containerd drops the repeated name; a runtime that does not runs the same hooks once more,
    # which make links that are there already, and allows the same device nodes again.
    for stage, hooks in twice["hooks"].items():
        assert [hook for hook in hooks if hook not in once["hooks"][stage]] == []
    allowed = once["linux"]["resources"]["devices"]
    assert [rule for rule in twice["linux"]["resources"]["devices"] if rule not in allowed] == []


async def test_one_claim_may_have_a_gpu_and_monitor_it_in_another_request(rig: Rig) -> None:
    await rig.start()
    claim = claim_of(rig, ("work", "gpu-0", False), ("watch", "gpu-0", True))
    got = await answer(rig, claim)
    assert [list(device.request_names) for device in got.devices] == [["work"], ["watch"]]
    assert len(set(cdi_names(got))) == 1
    assert (await rig.dra.refusal(rig.create_claim("gpu-0"))).startswith("DeviceInUse: ")
    assert await answer(rig, claim) == got


async def test_requests_that_repeat_a_device_are_each_answered_in_their_order(rig: Rig) -> None:
    await rig.start()
    results = [(f"r{number}", f"gpu-{number % 2}", True) for number in range(32)]
    claim = claim_of(rig, *results)
    got = await answer(rig, claim)
    assert [
        (device.request_names[0], device.device_name, True) for device in got.devices
    ] == results
    # Each board is asked once, not once for every result.
    (proof,) = rig.spans(claim, "verify devices")
    assert len(proof["attributes"]["hw.id"]) == 2


async def test_sixty_four_claims_in_one_call_are_each_answered(rig: Rig) -> None:
    await rig.start()
    used = [rig.create_claim(f"gpu-{minor}") for minor in range(8)]
    monitors = [rig.create_claim(f"gpu-{number % 8}", admin=True) for number in range(56)]
    claims = [*used, *monitors]
    answers = await rig.dra.prepare(claims)
    assert len(answers) == 64
    assert not [each.error for each in answers.values() if each.error]
    assert set(rig.recorded_claims()) == {claim.uid for claim in claims}
    assert await rig.dra.prepare(claims) == answers
    ended = await rig.dra.unprepare(claims)
    assert not [each.error for each in ended.values() if each.error]
    assert not rig.recorded_claims()


async def test_256_monitors_of_one_gpu_stand_in_nobodys_way_and_survive_a_restart(
    rig: Rig,
) -> None:
    await rig.start()
    monitors = [
        claim_of(rig, *((f"r{number}", "gpu-7", True) for number in range(32))) for _ in range(8)
    ]
    before = await rig.dra.prepare(monitors)
    assert not any(each.error for each in before.values())
    assert [len(before[claim.uid].devices) for claim in monitors] == [32] * 8
    assert len({name for each in before.values() for name in cdi_names(each)}) == 1
    await _all_usable(rig)
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    await rig.start()
    assert await rig.dra.prepare(monitors) == before
    await _all_usable(rig)
    ended = await rig.dra.unprepare(monitors)
    assert not any(each.error for each in ended.values())
    assert not rig.recorded_claims()


async def _all_usable(rig: Rig) -> None:
    """Every GPU, the monitored one too, can be had and given back, all at once."""
    claims = [rig.create_claim(f"gpu-{minor}") for minor in range(8)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(answer(rig, claim)) for claim in claims]
    assert not [task.result().error for task in tasks if task.result().error]
    assert not any(each.error for each in (await rig.dra.unprepare(claims)).values())


def _injected(rig: Rig, names: Sequence[str]) -> Any:
    """An OCI runtime specification into which these names have been injected."""
    return oci.inject({"ociVersion": "1.1.0", "linux": {}}, Cache([rig.node.cdi]), names)


MADE = "gpu-1-mig-1g10gb-19-0"
WITH_MIG = "--feature-gates=DynamicMIG=true"


def shown_mode(rig: Rig) -> str:
    return rig.node.nvidia_smi(
        "-i", "1", "--query-gpu=mig.mode.current", "--format=csv,noheader"
    ).strip()


@pytest.mark.parametrize("is_monitored_first", [True, False])
async def test_a_gpu_with_mig_devices_of_claims_is_monitored_and_stays_as_it_is(
    rig: Rig, is_monitored_first: bool
) -> None:
    await rig.start(WITH_MIG)
    used, monitor = rig.create_claim(MADE), rig.create_claim("gpu-1", admin=True)
    ordered = [monitor, used] if is_monitored_first else [used, monitor]
    answers = [await answer(rig, claim) for claim in ordered]
    assert [found.error for found in answers] == ["", ""]
    assert shown_mode(rig) == "Enabled"
    listed = rig.node.nvidia_smi("-L")
    assert [await answer(rig, claim) for claim in ordered] == answers
    assert '"steps":[]' in rig.recorded_claims()[monitor.uid]
    assert not (await rig.dra.unprepare([monitor]))[monitor.uid].error
    assert (rig.node.nvidia_smi("-L"), shown_mode(rig)) == (listed, "Enabled")
    assert not (await rig.dra.unprepare([used]))[used.uid].error
    assert shown_mode(rig) == "Disabled"


async def test_a_mig_device_that_is_only_made_for_claims_is_not_monitored_and_the_gpu_is_advised(
    rig: Rig,
) -> None:
    await rig.start(WITH_MIG)
    monitor = rig.create_claim(MADE, admin=True)
    for holder in (None, rig.create_claim(MADE)):
        if holder is not None:
            assert not (await answer(rig, holder)).error
        error = (await answer(rig, monitor)).error
        assert error.startswith("UnknownDevice: ")
        assert f"{MADE} exists only for the claim that it is made for" in error
        assert "ask for admin access to gpu-1" in error
