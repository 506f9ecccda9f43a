# SPDX-License-Identifier: Apache-2.0
"""nvidia-persistenced, and persistence mode by NVML and nvidia-smi with and without it.

Source: docs/reference/nvml-simulator.md §17; NVIDIA/nvidia-persistenced, nvpd_rpc.h.
"""

import os
import socket
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from nvdra_sim import incidents
from nvdra_sim.filesystem import driver_root
from nvdra_sim.testing.passthrough_fixtures import MakeServedNode, ServedNode

PROGRAM = 35006
SET, GET = 1, 2
SUCCESS, NOT_FOUND, DRIVER = 0, 2, 3


def ask(node: ServedNode, procedure: int, index: int, *arguments: int, version: int = 1) -> bytes:
    """The reply to a call of the daemon about a GPU."""
    domain, bus, slot = (int(word.partition(".")[0], 16) for word in node.address(index).split(":"))
    words = (7, 0, 2, PROGRAM, version, procedure, 0, 0, 0, 0, domain, bus, slot, 0, *arguments)
    message = struct.pack(f">{len(words)}I", *words)
    directory = os.open(node.persistenced_socket.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(f"/proc/self/fd/{directory}/socket")
            asked.sendall(struct.pack(">I", 1 << 31 | len(message)) + message)
            (mark,) = struct.unpack(">I", asked.recv(4, socket.MSG_WAITALL))
            return asked.recv(mark & ~(1 << 31), socket.MSG_WAITALL)
    finally:
        os.close(directory)


def result(reply: bytes) -> tuple[int, ...]:
    """What an accepted call returns."""
    words = struct.unpack(f">{len(reply) // 4}I", reply)
    assert words[:6] == (7, 1, 0, 0, 0, 0)
    return words[6:]


def minors(pid: int) -> set[str]:
    """The GPU nodes that a process has open."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(link.readlink().name)
    return {name for name in links if name.startswith("nvidia") and name[6:].isdecimal()}


def smi(node: ServedNode, *words: str, sees_daemon: bool = True) -> str:
    """What nvidia-smi says, in the mount namespace of the daemon or in one without its socket."""
    program = node.roots.driver / driver_root.program_directory(node.description) / "nvidia-smi"
    environment = {"PATH": os.defpath, **node.environment}
    if sees_daemon:
        environment["NVDRA_SIM_PERSISTENCED"] = str(node.persistenced_socket)
    done = subprocess.run(
        (program, *words), env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout


def modes(node: ServedNode, *, sees_daemon: bool = True) -> list[str]:
    """The persistence mode of each GPU, as nvidia-smi says it."""
    query = ("--query-gpu=persistence_mode", "--format=csv,noheader")
    return smi(node, *query, sees_daemon=sees_daemon).split()


def test_it_keeps_all_gpus_open_and_lets_go_of_one(served_node: MakeServedNode) -> None:
    node = served_node("t4")
    with node.persistenced() as pid:
        assert minors(pid) == {"nvidia0", "nvidia1", "nvidia2", "nvidia3"}
        assert result(ask(node, GET, 1)) == (SUCCESS, 1)
        assert result(ask(node, SET, 1, 0)) == (SUCCESS,)
        assert minors(pid) == {"nvidia0", "nvidia2", "nvidia3"}
        assert result(ask(node, GET, 1)) == (SUCCESS, 0)
        assert result(ask(node, SET, 1, 1, version=2)) == (SUCCESS,)
        assert minors(pid) == {"nvidia0", "nvidia1", "nvidia2", "nvidia3"}
    assert not node.persistenced_socket.exists()


def test_it_can_begin_with_none(served_node: MakeServedNode) -> None:
    node = served_node("t4")
    with node.persistenced("--no-persistence-mode") as pid:
        assert minors(pid) == set()
        assert result(ask(node, SET, 2, 1)) == (SUCCESS,)
        assert minors(pid) == {"nvidia2"}


@pytest.mark.parametrize(("version", "procedure", "accepted"), [(3, 1, 2), (1, 3, 3), (1, SET, 4)])
def test_what_is_no_call_of_it_is_refused(
    served_node: MakeServedNode, version: int, procedure: int, accepted: int
) -> None:
    node = served_node("t4")
    with node.persistenced():
        reply = ask(node, procedure, 0, version=version)
        assert struct.unpack_from(">6I", reply) == (7, 1, 0, 0, 0, accepted)
        assert result(ask(node, GET, 0)) == (SUCCESS, 1)


def test_nvidia_smi_asks_it_where_its_socket_is(served_node: MakeServedNode) -> None:
    node = served_node("t4")
    with node.persistenced() as pid:
        assert modes(node) == ["Enabled"] * 4
        assert "Disabled persistence mode" in smi(node, "-i", "1", "-pm", "0")
        assert minors(pid) == {"nvidia0", "nvidia2", "nvidia3"}
        assert modes(node) == ["Enabled", "Disabled", "Enabled", "Enabled"]
        assert "Enabled persistence mode" in smi(node, "-i", "1", "-pm", "1")
        assert minors(pid) == {"nvidia0", "nvidia1", "nvidia2", "nvidia3"}
    assert modes(node) == ["Disabled"] * 4


def test_in_a_container_without_its_socket_nvml_knows_the_mode_of_the_module_only(
    served_node: MakeServedNode,
) -> None:
    node = served_node("t4")
    with node.persistenced() as pid:
        assert modes(node, sees_daemon=False) == ["Disabled"] * 4
        smi(node, "-i", "1", "-pm", "0", sees_daemon=False)
        assert len(minors(pid)) == 4
        smi(node, "-i", "1", "-pm", "1", sees_daemon=False)
        assert modes(node, sees_daemon=False) == ["Disabled", "Enabled", "Disabled", "Disabled"]
        assert node.state.snapshot().gpus[1].persistence == 1
        smi(node, "-i", "1", "-pm", "0")
        assert node.state.snapshot().gpus[1].persistence == 0
        assert minors(pid) == {"nvidia0", "nvidia2", "nvidia3"}


def test_the_mode_of_the_module_does_not_keep_a_gpu_from_being_unbound_and_it_does(
    served_node: MakeServedNode,
) -> None:
    node = served_node("t4")
    smi(node, "-i", "0", "-pm", "1")
    unbind = node.sys / "bus/pci/drivers/nvidia/unbind"
    unbind.write_text(node.address(0))
    assert not (node.device(0) / "driver").exists()
    with node.persistenced():
        assert result(ask(node, SET, 0, 1)) == (NOT_FOUND,), "it was not there at the start"
        waiting = subprocess.Popen(("sh", "-c", f"echo {node.address(1)} > {unbind}"))
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.5)
        assert result(ask(node, SET, 1, 0)) == (SUCCESS,)
        assert waiting.wait(30) == 0
        assert not (node.device(1) / "driver").exists()


def test_it_opens_a_gpu_again_that_was_unbound_unless_it_cannot(
    served_node: MakeServedNode,
) -> None:
    node = served_node("t4")
    for options, status in ((), SUCCESS), (("--cannot-reopen",), DRIVER):
        with node.persistenced(*options) as pid:
            assert result(ask(node, SET, 1, 0)) == (SUCCESS,)
            incidents.unbind(node.state, node.state.gpu("1"))
            assert result(ask(node, SET, 1, 1)) == (DRIVER,)
            incidents.bind(node.state, node.state.gpu("1"))
            assert result(ask(node, SET, 1, 1)) == (status,)
            assert ("nvidia1" in minors(pid)) == (status == SUCCESS)


def test_a_gpu_that_it_keeps_open_is_not_stopped(served_node: MakeServedNode) -> None:
    node = served_node("t4")
    with node.persistenced():
        smi(node, "-i", "0", "-c", "PROHIBITED")
        assert node.state.snapshot().gpus[0].compute_mode == 2
        smi(node, "-L")
        assert node.state.snapshot().gpus[0].compute_mode == 2
