# SPDX-License-Identifier: Apache-2.0
"""Files and sockets that are removed or damaged are restored, or reported.

The process is the same at the end of each test, and nothing that was prepared has changed.
"""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nvdra_testing.hardware import driver_installation
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig

PLUGIN = f"plugins/{plugin.DRIVER}"
REGISTRY = "plugins_registry"


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@pytest.mark.parametrize(
    "name",
    [f"{PLUGIN}/dra.sock", PLUGIN, f"{REGISTRY}/{plugin.DRIVER}-reg.sock", REGISTRY],
)
async def test_sockets_that_are_taken_away_are_made_again_and_no_claim_is_lost(
    rig: Rig, name: str
) -> None:
    await rig.start()
    held, new = rig.create_claim("gpu-1"), rig.create_claim("gpu-2")
    before = (await rig.dra.prepare([held]))[held.uid]
    assert not before.error
    process, attempts = rig.process.process, len(rig.kubelet.registrations)
    remove(rig.node.kubelet / name)
    if REGISTRY not in name:
        await rig.wait_until(Path(rig.dra.endpoint).is_socket, "the socket")
        await rig.kubelet.restart()
    await rig.wait_until(lambda: len(rig.kubelet.registrations) > attempts, "the next registration")
    rig.dra = await rig.kubelet.wait_registered(plugin.DRIVER)
    assert (await rig.dra.prepare([held]))[held.uid] == before
    assert not (await rig.dra.prepare([new]))[new.uid].error
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "readiness")
    assert process.poll() is None


async def test_a_call_under_way_ends_although_the_kubelet_restarts_and_the_repeat_is_the_same(
    rig: Rig,
) -> None:
    await rig.start()
    rig.node.simctl("slow", "2000", "--gpu", "2")
    claim = rig.create_claim("gpu-2")
    call = asyncio.ensure_future(rig.dra.prepare([claim]))  # noqa: TID251 - given up
    await asyncio.sleep(0.5)
    call.cancel()
    await rig.kubelet.restart()
    rig.dra = await rig.kubelet.wait_registered(plugin.DRIVER)
    first = (await rig.dra.prepare([claim]))[claim.uid]
    assert not first.error
    assert (await rig.dra.prepare([claim]))[claim.uid] == first


async def test_a_plugin_that_the_kubelet_refuses_offers_itself_again_later_and_later(
    rig: Rig,
) -> None:
    rig.kubelet.registration_errors[plugin.DRIVER] = ["not now", "not now either"]
    rig.process = rig.launch()
    await rig.wait_until(lambda: len(rig.kubelet.registrations) >= 1, "the first refusal")
    await rig.wait_until(
        lambda: "not now" in rig.process.get("/readyz?verbose")[1], "the reason in /readyz"
    )
    await rig.kubelet.wait_registered(plugin.DRIVER)
    verdicts = [verdict for _, verdict in rig.kubelet.registrations]
    assert verdicts == ["not now", "not now either", ""]
    assert rig.process.get("/healthz")[0] == 200
    await rig.wait_until(lambda: rig.process.get("/readyz")[0] == 200, "readiness")


async def test_cdi_files_that_are_removed_or_edited_are_put_back_without_a_claim(
    rig: Rig,
) -> None:
    await rig.start()
    (spec,) = rig.node.cdi.glob("*.yaml")
    text = spec.read_text()
    spec.write_text(text.replace("nvidiactl", "null"))
    await rig.wait_until(lambda: spec.read_text() == text, "the edited spec")
    spec.unlink()
    await rig.wait_until(spec.exists, "the removed spec")
    assert spec.read_text() == text
    shutil.rmtree(rig.node.cdi)
    await rig.wait_until(spec.exists, "the directory with its spec")
    assert spec.read_text() == text


async def test_the_spec_of_an_older_driver_is_put_back_while_a_claim_stands_on_it(
    rig: Rig,
) -> None:
    await rig.start()
    held = rig.create_claim("gpu-1")
    before = (await rig.dra.prepare([held]))[held.uid]
    (older,) = rig.node.cdi.glob("*.yaml")
    text = older.read_text()
    assert rig.process.stop() == 0
    await rig.kubelet.wait_deregistered(plugin.DRIVER)
    driver_installation.install_driver(rig.node, version="590.44.1")
    await rig.start()
    await rig.wait_until(lambda: len(list(rig.node.cdi.glob("*.yaml"))) == 2, "both specs")
    older.unlink()
    await rig.wait_until(older.exists, "the older spec")
    assert older.read_text() == text
    assert (await rig.dra.prepare([held]))[held.uid].devices[0].cdi_device_ids == (
        before.devices[0].cdi_device_ids
    )
    assert not (await rig.dra.unprepare([held]))[held.uid].error
    await rig.wait_until(lambda: not older.exists(), "nobody to stand on it")


@contextmanager
def mounted(directory: Path, options: str) -> Iterator[None]:
    """A file system of its own at `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


def remounted(directory: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", directory], check=True)


@pytest.mark.parametrize(
    ("spoilt", "mended", "says"),
    [
        ("size=4k", "size=1m", "No space left on device"),
        ("ro", "rw", "Read-only file system"),
    ],
)
async def test_a_cdi_directory_that_cannot_be_written_is_told_of_until_it_can(
    rig: Rig, spoilt: str, mended: str, says: str
) -> None:
    with mounted(rig.node.cdi, spoilt):
        rig.process = rig.launch()
        rig.dra = await rig.kubelet.wait_registered(plugin.DRIVER, plugin.START_S)
        await rig.wait_until(lambda: says in rig.process.get("/readyz?verbose")[1], "the reason")
        assert rig.process.get("/healthz")[0] == 200
        await rig.wait_until(lambda: len(rig.slices()) == 1, "an empty slice")
        assert not rig.devices()
        await rig.wait_until(
            lambda: any(says in event["message"] for event in rig.events("DeviceNodeMissing")),
            "an Event of the Node",
        )
        claim = rig.create_claim("gpu-0")
        text = (await rig.dra.prepare([claim]))[claim.uid].error
        assert says in text
        assert not [path for path in rig.node.cdi.iterdir() if path.suffix == ".tmp"]
        remounted(rig.node.cdi, mended)
        await rig.wait_until(lambda: len(rig.devices()) == 8, "the GPUs")
        assert not (await rig.dra.prepare([claim]))[claim.uid].error
        assert rig.process.stop() == 0


async def test_a_cdi_directory_that_becomes_read_only_stops_no_claim(rig: Rig) -> None:
    with mounted(rig.node.cdi, "size=1m"):
        await rig.start()
        remounted(rig.node.cdi, "ro")
        claim = rig.create_claim("gpu-0")
        assert not (await rig.dra.prepare([claim]))[claim.uid].error
        assert not (await rig.dra.unprepare([claim]))[claim.uid].error
        assert rig.process.stop() == 0
