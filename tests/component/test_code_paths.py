# SPDX-License-Identifier: Apache-2.0
"""How far the code is from a call of the kubelet to the hardware, or from a change to the API.

Every number only goes down; it has a little room for calls that are repeated. `pytest -rP` on this
file lists the files with their lines, and the functions from the gRPC handler to NVML.
"""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from uuid import uuid4

from nvdra_testing.code_paths import measurement
from nvdra_testing.code_paths.measurement import CodePath, Recording
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.domain_installation import DriverInstallation
from nvdra_testing.kubelet import kubelet_client
from nvdra_testing.node import plugin
from nvdra_testing.node import rig as rigs
from nvdra_testing.node.domain_rig import DomainRig
from nvdra_testing.node.rig import Rig, cdi_names
from nvdra_testing.polling import wait_until

CALL = "kubeletplugin/grpc_service.py"
RECONCILE = "nvdra_cd_controller/reconciler.py"


class Most(NamedTuple):
    """The most that an operation may go through.

    Attributes:
        files: Without the gRPC door and NVML's worker.
        lines: Of the executed functions of all files.
        depth: Functions from the gRPC handler to NVML; 0 if NVML is not called.
    """

    files: int
    lines: int
    depth: int


def check(name: str, found: CodePath, most: Most) -> None:
    print(found.text(name))  # noqa: T201 - what `-rP` shows
    assert len(found.inner_files) <= most.files
    assert found.line_count <= most.lines
    assert len(found.chain) <= most.depth


@asynccontextmanager
async def gpu_rig(server: ApiServer, recording: Recording) -> AsyncIterator[Rig]:
    async with rigs.open_rig(server, f"node-{uuid4().hex[:6]}") as rig:
        rig.program = recording.program
        yield rig


async def gpu_prepare(server: ApiServer, tmp_path: Path, device: str, *flags: str) -> CodePath:
    """The way of a claim of this device; another claim was prepared before."""
    recorded = measurement.recording(tmp_path, CALL, "nvdra-gpu-plugin")
    async with gpu_rig(server, recorded) as rig:
        await rig.start(*flags)
        first, claim = rig.create_claim("gpu-7"), rig.create_claim(device)
        assert cdi_names((await rig.dra.prepare([first]))[first.uid])
        await recorded.begin(rig.process.process.pid)
        assert cdi_names((await rig.dra.prepare([claim]))[claim.uid])
        return await recorded.end(rig.process.process.pid)


async def test_a_whole_gpu(shared_apiserver_with_crds: ApiServer, tmp_path: Path) -> None:
    found = await gpu_prepare(shared_apiserver_with_crds, tmp_path, "gpu-1")
    check("whole GPU", found, Most(files=67, lines=2880, depth=16))


async def test_a_made_mig_device(shared_apiserver_with_crds: ApiServer, tmp_path: Path) -> None:
    gate = "--feature-gates=DynamicMIG=true"
    found = await gpu_prepare(shared_apiserver_with_crds, tmp_path, "gpu-0-mig-1g10gb-19-0", gate)
    check("made MIG device", found, Most(files=93, lines=4410, depth=17))


async def test_a_channel(shared_apiserver_with_crds: ApiServer, tmp_path: Path) -> None:
    server, name = shared_apiserver_with_crds, f"node-{uuid4().hex[:6]}"
    namespace = domain_objects.create_namespace(server, "nvdra")
    recorded = measurement.recording(tmp_path, CALL, "nvdra-cd-plugin")
    with TemporaryDirectory(prefix="nvdra-", dir="/dev/shm") as directory, ExitStack() as stack:
        node = stack.enter_context(plugin.simulated_node(Path(directory), name, "gb200-nvl72"))
        plugin.create_node_object(server, name)
        async with kubelet_client.run_kubelet(node.kubelet) as kubelet:
            rig = DomainRig(server, node, kubelet, stack, namespace=namespace)
            rig.program = recorded.program
            await rig.start()
            domain = rig.create_domain()
            await rig.make_daemon_ready(domain)
            claim = rig.create_channel_claim(domain)
            await recorded.begin(rig.process.process.pid)
            answer = await rig.prepare(claim)
            assert not answer.error, answer.error
            found = await recorded.end(rig.process.process.pid)
    check("channel", found, Most(files=100, lines=4750, depth=0))


async def test_a_new_domain(shared_apiserver_with_crds: ApiServer, tmp_path: Path) -> None:
    server = shared_apiserver_with_crds
    domain_objects.remove_all_domains(server)
    team = domain_objects.create_namespace(server)
    namespace = domain_objects.create_namespace(server, "nvdra")
    world = DriverInstallation(server, tmp_path, namespace, team)
    recorded = measurement.recording(tmp_path, RECONCILE, "nvdra-cd-controller")
    with world.run_controller(program=(recorded.program,)) as controller:
        await wait_until(controller.is_ready)
        await recorded.begin(controller.process.pid)
        world.create_domain()
        await world.wait_children_ready()
        found = await recorded.end(controller.process.pid)
    world.remove_domains_by_force()
    check("new domain", found, Most(files=51, lines=2400, depth=0))
