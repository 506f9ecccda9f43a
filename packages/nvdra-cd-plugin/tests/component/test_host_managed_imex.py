# SPDX-License-Identifier: Apache-2.0
"""--imex-mode=hostManaged: nvidia-imex-ctl on the host decides, and no label is set."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nvdra_testing.node.domain_rig import DomainRig, cdi_names

MODE = ("--imex-mode=hostManaged", "--feature-gates=HostManagedIMEXDaemon=true")
SOCKET = "/run/imex.sock"
CONFIG = """\
LOG_LEVEL=4
LOG_FILE_NAME=
DAEMONIZE=0
BIND_INTERFACE_IP=127.77.0.1
SERVER_PORT=50000
IMEX_NODE_CONFIG_FILE={nodes}
IMEX_WAIT_FOR_QUORUM=NONE
IMEX_CMD_ENABLED=1
IMEX_CMD_UNIX_DOMAIN_PATH={socket}
"""


@contextmanager
def imex(rig: DomainRig) -> Iterator[None]:
    """The host's own nvidia-imex."""
    root = rig.node.roots.driver
    (root / "run").mkdir(exist_ok=True)
    nodes, config = root / "run/nodes.cfg", root / "run/imex.cfg"
    nodes.write_text("127.77.0.1\n")
    config.write_text(CONFIG.format(nodes=nodes, socket=f"{root}{SOCKET}"))
    program = next(root.rglob("nvidia-imex"))
    process = subprocess.Popen([program, "-c", config])
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=10)


async def test_a_channel_is_given_when_the_hosts_imex_is_ready(rig: DomainRig) -> None:
    await rig.start(*MODE, f"--imex-host-socket-path={SOCKET}")
    assert list(rig.devices()) == ["channel-0"]
    domain = rig.create_domain("All")
    claim = rig.create_channel_claim(domain, "All", device="channel-3")
    answer = await rig.prepare(claim, timeout_s=5)
    assert answer.error.startswith("DaemonNotReady: the nvidia-imex that the host runs")
    with imex(rig):
        waiting = rig.start_prepare(claim)
        answer = await waiting
        assert not answer.error, answer.error
    assert cdi_names(answer) == [f"k8s.compute-domain.nvidia.com/claim={claim.uid}-channel-3"]
    (node,) = rig.claim_cdi_spec(claim)["devices"][0]["containerEdits"]["deviceNodes"]
    assert (node["path"].rpartition("/")[2], node["minor"]) == ("channel3", 3)
    assert rig.node_label() == ""
    began = time.monotonic()
    assert await rig.unprepare(claim) == ""
    assert time.monotonic() - began < 20
    assert rig.claim_cdi_spec(claim) == {}


async def test_there_are_no_daemons(rig: DomainRig) -> None:
    await rig.start(*MODE)
    answer = await rig.prepare(rig.create_daemon_claim(rig.create_domain()))
    assert answer.error.startswith("UnknownDevice: "), answer.error


async def test_without_nvidia_imex_ctl_the_hosts_imex_cannot_be_queried(rig: DomainRig) -> None:
    await rig.start(*MODE)
    for found in list(rig.node.roots.driver.rglob("nvidia-imex-ctl")):
        found.unlink()
    answer = await rig.prepare(rig.create_channel_claim(rig.create_domain()))
    assert answer.error.startswith("ImexBinaryMissing: nvidia-imex-ctl is not below "), answer.error
