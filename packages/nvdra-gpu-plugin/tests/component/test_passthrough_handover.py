# SPDX-License-Identifier: Apache-2.0
"""A claim that waits for the other form of its GPU gets it as soon as its holder is unprepared."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.node import passthrough_rig, plugin
from nvdra_testing.node.passthrough_rig import PassthroughRig


@pytest_asyncio.fixture
async def rig(server: ApiServer) -> AsyncIterator[PassthroughRig]:
    async with passthrough_rig.open_rig(server, f"node-{uuid4().hex[:6]}") as rig:
        yield rig


@pytest.mark.parametrize(("held", "asked"), [("gpu-vfio-1", "gpu-1"), ("gpu-1", "gpu-vfio-1")])
async def test_a_gpu_is_handed_over_in_its_other_form(
    rig: PassthroughRig, held: str, asked: str
) -> None:
    await rig.start_passing()
    holder, wanted = rig.create_claim(held), rig.create_claim(asked)
    assert not (await rig.dra.prepare([holder]))[holder.uid].error
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(rig.dra.prepare([wanted]))
        await rig.wait_until(lambda: bool(rig.spans(wanted, "fetch claim")), "the claim to be read")
        assert not (await rig.dra.unprepare([holder]))[holder.uid].error
    assert not waiting.result()[wanted.uid].error
    assert set(rig.recorded_claims()) == {wanted.uid}


async def test_a_claim_that_only_looks_at_a_gpu_is_told_who_has_it(
    rig: PassthroughRig, server: ApiServer
) -> None:
    plugin.allow_admin_access(server)
    await rig.start_passing()
    looking, taking = rig.create_claim("gpu-1", admin=True), rig.create_claim("gpu-vfio-1")
    before = (await rig.dra.prepare([looking]))[looking.uid]
    assert not (await rig.dra.prepare([taking]))[taking.uid].error
    error = (await rig.dra.prepare([looking]))[looking.uid].error
    assert error.startswith(f"DeviceInUse: gpu-1 is held by claim default/{taking.name}"), error
    assert not (await rig.dra.unprepare([taking]))[taking.uid].error
    assert (await rig.dra.prepare([looking]))[looking.uid] == before
