# SPDX-License-Identifier: Apache-2.0
"""Two instances of the plugin on one node: one is active, the other stands by and takes over."""

import asyncio
import signal
from functools import partial
from pathlib import Path

import pytest
from nvdra_testing.faults import api_proxy
from nvdra_testing.node import rollouts
from nvdra_testing.node.domain_rig import DomainRig, cdi_names
from nvdra_testing.node.plugin import PluginProcess
from nvdra_testing.node.rollouts import load, wait_takeover


async def start_next(rig: DomainRig) -> PluginProcess:
    return await rollouts.start_next(rig, f"--namespace={rig.namespace}")


@pytest.mark.parametrize("prefers_oldest", [False, True], ids=["newest first", "oldest first"])
async def test_no_call_fails_while_an_instance_is_replaced_under_load(
    rig: DomainRig, prefers_oldest: bool
) -> None:
    await rig.start()
    rig.kubelet.prefers_oldest = prefers_oldest
    domain = rig.create_domain()
    daemon = await rig.make_daemon_ready(domain)
    before = cdi_names(await rig.prepare(daemon))
    (published,) = rig.slices()
    async with load(rig, [partial(rig.create_channel_claim, domain)]) as running:
        second = await start_next(rig)
        await asyncio.sleep(1)
        assert await asyncio.to_thread(rig.process.stop) == 0
        await wait_takeover(rig, second)
        count = running.count
        await asyncio.sleep(1)
        await rig.wait_until(lambda: running.count > count + 2, "claims after the takeover")
    assert running.failures == []
    assert rig.slices() == [published]
    assert set(rig.recorded_claims()) == {daemon.uid}
    rig.dra = rig.kubelet.plugins[rig.driver]
    assert cdi_names(await rig.prepare(daemon)) == before
    assert await rig.unprepare(daemon) == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_a_channel_that_waits_for_its_daemon_gets_it_after_the_rollout(
    rig: DomainRig, number: signal.Signals
) -> None:
    await rig.start()
    second = await start_next(rig)
    rig.dra = rig.kubelet.plugins[rig.driver]
    domain = rig.create_domain()
    waiting = rig.start_prepare(rig.create_channel_claim(domain))
    await rig.poll_until(lambda: rig.node_label() == domain["metadata"]["uid"], "the node's label")
    await asyncio.to_thread(rig.process.stop, number)
    await wait_takeover(rig, second)
    assert not waiting.done()
    await rig.make_daemon_ready(domain)
    assert cdi_names(await waiting)


async def test_an_old_kubelet_knows_the_next_instance_only_after_the_takeover(
    rig: DomainRig,
) -> None:
    rollouts.set_kubelet_version(rig, "v1.32.13")
    await rig.start()
    second = rollouts.launch_next(rig, f"--namespace={rig.namespace}")
    await rollouts.wait_ready(rig, second)
    assert len(rig.kubelet.instances[rig.driver]) == 1
    assert await asyncio.to_thread(rig.process.stop) == 0
    await wait_takeover(rig, second)
    rig.dra = rig.kubelet.plugins[rig.driver]
    await rig.make_daemon_ready(rig.create_domain())


async def test_an_instance_that_does_not_find_the_driver_lets_the_former_one_go_on(
    rig: DomainRig, tmp_path: Path
) -> None:
    """The clique that the former one knew is in a file of this boot."""
    await rig.start()
    elsewhere = f"--container-driver-root={tmp_path}"
    second = rollouts.launch_next(rig, f"--namespace={rig.namespace}", elsewhere)
    await rig.wait_until(
        lambda: "libnvidia-ml.so.1 is not in the driver root" in second.get("/readyz?verbose")[1],
        "the reason",
    )
    assert second.get("/readyz")[0] == 503
    await rig.make_daemon_ready(rig.create_domain())
    # Were the former one to end all the same, the clique alone would not make this one ready.
    assert await asyncio.to_thread(rig.process.stop) == 0
    await wait_takeover(rig, second)
    await rig.wait_until(
        lambda: "[-]fabric failed: DriverMismatch" in second.get("/readyz?verbose")[1],
        "the fabric to be unusable",
    )


async def test_an_instance_that_does_not_reach_the_api_server_lets_the_former_one_go_on(
    rig: DomainRig, tmp_path: Path
) -> None:
    """However long it waits. A proxy of the namespace or a missing right are such causes."""
    await rig.start()
    async with api_proxy.run_proxy(rig.server, tmp_path) as proxy:
        with proxy.inject("GET .*/nodes/", status=403):
            flags = (f"--namespace={rig.namespace}", f"--kubeconfig={proxy.kubeconfig}")
            second = rollouts.launch_next(rig, *flags)
            await rig.wait_until(lambda: proxy.count("GET .*/nodes/") > 12, "a dozen attempts")
            status, told = second.get("/readyz?verbose")
            assert status == 503
            assert "[-]kubelet failed: the kubelet's version is not known" in told
        await rollouts.wait_ready(rig, second)
