# SPDX-License-Identifier: Apache-2.0
"""CDI edits of channels and daemons (docs/reference/compute-domain.md, "CDI specs of claims")."""

from pathlib import PurePath

from nvdra_api.ids import CliqueID, DomainUID
from nvdra_cd_plugin.cdi import edits
from nvdra_cd_plugin.cdi.edits import DevRoot
from nvdra_cd_plugin.domains.domain import Domain
from nvdra_cd_plugin.node import device_numbers
from nvdra_cd_plugin.node.device_numbers import DeviceNumbers
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Mount, Spec

DOMAIN = Domain(DomainUID("11111111-2222-3333-4444-555555555555"), "team-a", "ring")
CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
HOST = DevRoot("/")


def test_a_channel_is_a_node_by_its_numbers() -> None:
    path = "/dev/nvidia-caps-imex-channels/channel5"
    made = edits.channels(HOST, [device_numbers.channel(5, 235)])
    assert made == ContainerEdits(
        device_nodes=(DeviceNode(path, type="c", major=235, minor=5, file_mode=0o666),)
    )
    elsewhere = edits.channels(DevRoot("/run/sim"), [device_numbers.channel(5, 235)])
    assert elsewhere.device_nodes[0].host_path == f"/run/sim{path}"


def test_a_daemon_gets_its_domain_its_directory_and_its_capability() -> None:
    directory = PurePath("/var/lib/kubelet/plugins/compute-domain.nvidia.com/domains", DOMAIN.uid)
    capability = DeviceNumbers("/dev/nvidia-caps/nvidia-cap512", 236, 512, 0o400)
    made = edits.daemon(HOST, DOMAIN, CLIQUE, directory, capability)
    assert made.env == (
        f"CLIQUE_ID={CLIQUE}",
        f"COMPUTE_DOMAIN_UUID={DOMAIN.uid}",
        "COMPUTE_DOMAIN_NAME=ring",
        "COMPUTE_DOMAIN_NAMESPACE=team-a",
    )
    assert made.mounts == (Mount(str(directory), "/imexd", ("rw", "nosuid", "nodev", "bind")),)
    node = DeviceNode(capability.path, type="c", major=236, minor=512, file_mode=0o400)
    assert made.device_nodes == (node,)


def test_without_fabric_it_has_an_empty_clique_and_no_capability() -> None:
    made = edits.daemon(HOST, DOMAIN, CliqueID(""), PurePath("/d"), None)
    assert made.env[0] == "CLIQUE_ID="
    assert made.device_nodes == ()


def test_daemons_get_only_the_device_nodes_that_imex_opens() -> None:
    paths = (
        "/dev/nvidia0",
        "/dev/nvidia13",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-modeset",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps-imex-channels/channel0",
    )
    common = ContainerEdits(env=("A=b",))
    everything = ContainerEdits(device_nodes=tuple(map(DeviceNode, paths)))
    spec = Spec("k8s.compute-domain.nvidia.com/device", (Device("all", everything),), common)
    cut = edits.for_daemon_containers(spec)
    kept = [node.path for node in cut.devices[0].container_edits.device_nodes]
    assert kept == ["/dev/nvidia0", "/dev/nvidia13", "/dev/nvidiactl"]
    assert cut.container_edits == common
