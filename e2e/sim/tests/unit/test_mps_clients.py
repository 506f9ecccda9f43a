# SPDX-License-Identifier: Apache-2.0
"""Processes that compute with CUDA, as clients of an MPS daemon and by themselves.

Source: docs/reference/nvml-simulator.md §17.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nvdra_sim import mig_changes
from nvdra_sim.simctl import report
from nvdra_sim.state_file import state
from nvdra_sim.testing.mps_fixtures import CudaProcess, Mps, MpsDaemon, wait_until
from nvdra_sim.testing.node_fixtures import MakeNode, SimulatedNode

SUCCESS, OUT_OF_MEMORY, UNAVAILABLE, NO_DEVICE = 0, 2, 46, 100
IN_USE = 19  # of NVML
CONNECTION_FAILED, RPC_FAILURE, MAX_CLIENTS_REACHED, TERMINATED = 805, 806, 808, 810
DEFAULT, PROHIBITED, EXCLUSIVE_PROCESS = 0, 2, 3
MIB = 1 << 20
OTHER_USER = 1000


@pytest.fixture
def node(sim_node: MakeNode) -> SimulatedNode:
    """Two H100s in persistence mode, which keeps settings when no process uses them."""
    made = sim_node("dgx-h100", overrides={"gpu_count": 2})
    with state.load(made.state).transaction() as now:
        for gpu in now.gpus:
            gpu.persistence = 1
    return made


@pytest.fixture
def daemon(mps: Mps, node: SimulatedNode) -> MpsDaemon:
    """A daemon of GPU 1, whose compute mode is that which the driver sets for MPS."""
    set_mode(node, EXCLUSIVE_PROCESS)
    return mps.daemon(node, devices=uuid(node))


def uuid(node: SimulatedNode) -> str:
    return node.description.gpus[1].uuid


def set_mode(node: SimulatedNode, mode: int) -> None:
    assert node.run(node.smi, "-i", uuid(node), "-c", str(mode)).returncode == 0


def server(daemon: MpsDaemon) -> int:
    [pid] = daemon.command("get_server_list")
    return int(pid)


def started(client: CudaProcess) -> CudaProcess:
    assert client.start() == [SUCCESS, SUCCESS]
    return client


# Compute modes


def test_an_exclusive_gpu_has_one_process_that_computes_by_itself(
    mps: Mps, node: SimulatedNode
) -> None:
    set_mode(node, EXCLUSIVE_PROCESS)
    first, second = (mps.direct(node, CUDA_VISIBLE_DEVICES=uuid(node)) for _ in range(2))
    assert (first.start(), second.start()) == ([SUCCESS, SUCCESS], [SUCCESS, UNAVAILABLE])
    assert first.call("destroy") == [SUCCESS]
    assert second.call("create") == [SUCCESS]
    second.end()
    assert first.call("create") == [SUCCESS]


def test_a_gpu_in_the_default_mode_has_any_number_of_processes(
    mps: Mps, node: SimulatedNode
) -> None:
    for _ in range(3):
        started(mps.direct(node, CUDA_VISIBLE_DEVICES=uuid(node)))


def test_a_prohibited_gpu_has_none(mps: Mps, node: SimulatedNode) -> None:
    set_mode(node, PROHIBITED)
    assert mps.direct(node, CUDA_VISIBLE_DEVICES=uuid(node)).start() == [SUCCESS, UNAVAILABLE]


def test_clients_of_a_daemon_share_an_exclusive_gpu_and_nobody_else_gets_in(
    mps: Mps, daemon: MpsDaemon
) -> None:
    first, second = started(mps.client(daemon)), started(mps.client(daemon))
    assert daemon.command(f"get_client_list {server(daemon)}") == [str(first.pid), str(second.pid)]
    outsider = mps.direct(daemon.node, CUDA_VISIBLE_DEVICES=uuid(daemon.node))
    assert outsider.start() == [SUCCESS, UNAVAILABLE]


def test_a_server_cannot_start_while_another_process_has_the_exclusive_gpu(
    mps: Mps, daemon: MpsDaemon
) -> None:
    outsider = started(mps.direct(daemon.node, CUDA_VISIBLE_DEVICES=uuid(daemon.node)))
    assert mps.client(daemon).call("init") == [CONNECTION_FAILED]
    assert daemon.command("get_server_list") == []
    assert [line for line in daemon.log() if line.endswith("exited with status 1")]
    outsider.end()
    started(mps.client(daemon))


# Servers


def test_a_server_starts_with_its_first_client_and_outlives_it(mps: Mps, daemon: MpsDaemon) -> None:
    assert daemon.command("get_server_list") == []
    client = started(mps.client(daemon))
    pid = server(daemon)
    assert daemon.command(f"get_server_status {pid}") == ["ACTIVE"]
    client.end()
    wait_until(lambda: daemon.command(f"get_client_list {pid}") == [])
    assert server(daemon) == pid


def test_simctl_shows_on_which_gpus_processes_compute(mps: Mps, daemon: MpsDaemon) -> None:
    def computing() -> list[bool]:
        return [gpu["computing"] for gpu in report.node(state.load(daemon.node.state))["gpus"]]

    assert computing() == [False, False]
    started(mps.client(daemon))
    assert computing() == [False, True]
    daemon.command("quit -t 0")
    assert computing() == [False, False]


def test_a_server_can_be_started_before_its_first_client(mps: Mps, daemon: MpsDaemon) -> None:
    assert daemon.command(f"start_server -uid {os.getuid()}") == []
    pid = server(daemon)
    started(mps.client(daemon))
    assert server(daemon) == pid


def test_ps_names_the_device_and_the_program_of_each_client(mps: Mps, daemon: MpsDaemon) -> None:
    client = started(mps.client(daemon))
    header, line = daemon.command("ps")
    assert header.split() == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    assert line.split()[:5] == [
        str(client.pid), "0", str(server(daemon)), uuid(daemon.node)[:22], str(namespace),
    ]  # fmt: skip
    assert "python" in line.split()[5]
    assert daemon.command("get_device_client_list") == [f"{uuid(daemon.node)} {client.pid}"]
    assert daemon.command("ps -p 1") == [header]


def test_the_logs_name_a_client_and_its_server(mps: Mps, daemon: MpsDaemon) -> None:
    client = started(mps.client(daemon))
    pid = server(daemon)
    new_client = f"NEW CLIENT {client.pid} from user {os.getuid()}: Server is not ready"
    assert any(line.startswith(new_client) for line in daemon.log())
    assert f"Starting new server {pid} for user {os.getuid()}" in daemon.log()
    assert f"NEW SERVER {pid}: Ready" in daemon.log()
    assert "Server has started" in daemon.log()


# What the daemon's devices are


def test_a_client_sees_the_devices_of_its_daemon_alone(mps: Mps, daemon: MpsDaemon) -> None:
    client = started(mps.client(daemon))
    assert client.call("count") == [SUCCESS, 1]
    bare = uuid(daemon.node).removeprefix("GPU-").replace("-", "")
    assert client.call("uuid") == [SUCCESS, bare]


def test_a_client_that_asks_for_other_devices_gets_none(mps: Mps, daemon: MpsDaemon) -> None:
    other = daemon.node.description.gpus[0].uuid
    assert mps.client(daemon, CUDA_VISIBLE_DEVICES=other).call("init") == [NO_DEVICE]


def test_a_daemon_of_devices_that_do_not_exist_has_no_server(mps: Mps, node: SimulatedNode) -> None:
    daemon = mps.daemon(node, devices="GPU-00000000-0000-0000-0000-000000000000")
    assert mps.client(daemon).call("init") == [CONNECTION_FAILED]


def test_a_mig_device_is_shared_without_a_compute_mode(mps: Mps, sim_node: MakeNode) -> None:
    instances = [{"profile": "3g.40gb", "start": start, "compute": ["3c"]} for start in (0, 4)]
    gpus = [{"index": 0, "mig": {"mode": "on", "instances": instances}}]
    node = sim_node("dgx-h100", overrides={"gpu_count": 1, "gpus": gpus})
    listing = node.run(node.smi, "-L").stdout
    mig = "MIG-" + listing.split("MIG-")[1].split(")")[0]
    daemon = mps.daemon(node, devices=mig)
    daemon.command(
        "set_default_device_pinned_mem_limit 0 1024M",
        "set_default_active_thread_percentage 50",
    )
    first, second = started(mps.client(daemon)), started(mps.client(daemon))
    assert first.call("count") == [SUCCESS, 1]
    assert first.call("multiprocessors") == [SUCCESS, 30]
    assert second.call("memory") == [SUCCESS, 1024 * MIB, 1024 * MIB]


def test_a_process_has_one_mig_device_at_most_and_no_gpu_beside_it(
    mps: Mps, sim_node: MakeNode
) -> None:
    instances = [{"profile": "3g.40gb", "start": start, "compute": ["3c"]} for start in (0, 4)]
    gpus = [{"index": 0, "mig": {"mode": "on", "instances": instances}}]
    node = sim_node("dgx-h100", overrides={"gpu_count": 2, "gpus": gpus})
    listing = node.run(node.smi, "-L").stdout
    first, second = (f"MIG-{part.split(')')[0]}" for part in listing.split("MIG-")[1:])
    daemon = mps.daemon(node, devices=f"{first},{second}")
    assert started(mps.client(daemon)).call("count") == [SUCCESS, 1]
    assert mps.client(daemon, CUDA_VISIBLE_DEVICES=second).call("init") == [NO_DEVICE]
    gpu = node.description.gpus[1].uuid
    beside = mps.direct(node, CUDA_VISIBLE_DEVICES=f"{gpu},{second}")
    assert beside.call("init") == [SUCCESS]
    bare = second.removeprefix("MIG-").replace("-", "")
    assert [beside.call("count"), beside.call("uuid")] == [[SUCCESS, 1], [SUCCESS, bare]]


# Limits


def test_a_limit_by_uuid_is_taken_and_limits_nobody(mps: Mps, daemon: MpsDaemon) -> None:
    gpu = uuid(daemon.node)
    assert daemon.command(f"set_default_device_pinned_mem_limit {gpu} 2G") == []
    assert daemon.command(f"get_default_device_pinned_mem_limit {gpu}") == ["2G"]
    assert started(mps.client(daemon)).call("memory")[1] > 2048 * MIB


def test_a_client_has_the_part_of_the_multiprocessors_that_its_daemon_says(
    mps: Mps, daemon: MpsDaemon
) -> None:
    assert mps.direct(daemon.node).start()[0] == SUCCESS
    daemon.command("set_default_active_thread_percentage 50")
    assert started(mps.client(daemon)).call("multiprocessors") == [SUCCESS, 66]
    lower = started(mps.client(daemon, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10"))
    assert lower.call("multiprocessors") == [SUCCESS, 14]
    higher = started(mps.client(daemon, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="90"))
    assert higher.call("multiprocessors") == [SUCCESS, 66]


def test_a_client_gets_no_more_memory_than_its_daemon_says(mps: Mps, daemon: MpsDaemon) -> None:
    daemon.command("set_default_device_pinned_mem_limit 0 2048M")
    first, second = started(mps.client(daemon)), started(mps.client(daemon))
    assert first.call("memory") == [SUCCESS, 2048 * MIB, 2048 * MIB]
    code, address = first.call("allocate", 1536)
    assert (code, first.call("allocate", 1024)[0]) == (SUCCESS, OUT_OF_MEMORY)
    assert first.call("memory") == [SUCCESS, 512 * MIB, 2048 * MIB]
    assert second.call("allocate", 2048)[0] == SUCCESS
    assert first.call("give_back", address) == [SUCCESS]
    assert first.call("allocate", 2048)[0] == SUCCESS


def test_a_client_can_have_a_lower_limit_of_its_own(mps: Mps, daemon: MpsDaemon) -> None:
    daemon.command("set_default_device_pinned_mem_limit 0 2048M")
    lower = started(mps.client(daemon, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=512M"))
    assert lower.call("allocate", 1024)[0] == OUT_OF_MEMORY
    assert lower.call("memory") == [SUCCESS, 512 * MIB, 512 * MIB]
    higher = started(mps.client(daemon, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=4G"))
    assert higher.call("allocate", 3072)[0] == OUT_OF_MEMORY


def test_clients_together_get_no_more_than_the_device_has(mps: Mps, daemon: MpsDaemon) -> None:
    first, second = started(mps.client(daemon)), started(mps.client(daemon))
    _, free, _ = first.call("memory")
    assert first.call("allocate", free // MIB)[0] == SUCCESS
    assert second.call("allocate", 1)[0] == OUT_OF_MEMORY
    first.end()
    wait_until(lambda: second.call("allocate", 1)[0] == SUCCESS)


def test_defaults_concern_servers_that_start_later(mps: Mps, daemon: MpsDaemon) -> None:
    started(mps.client(daemon))
    daemon.command("set_default_active_thread_percentage 50")
    assert started(mps.client(daemon)).call("multiprocessors") == [SUCCESS, 132]
    daemon.command(f"shutdown_server {server(daemon)} -f")
    wait_until(lambda: daemon.command("get_server_list") == [])
    assert started(mps.client(daemon)).call("multiprocessors") == [SUCCESS, 66]


def test_limits_of_a_server_concern_clients_that_come_later(mps: Mps, daemon: MpsDaemon) -> None:
    before = started(mps.client(daemon))
    pid = server(daemon)
    assert daemon.command(f"set_active_thread_percentage {pid} 25") == ["25.0"]
    assert daemon.command(f"set_device_pinned_mem_limit {pid} 0 1G") == []
    assert daemon.command(
        f"get_active_thread_percentage {pid}", f"get_device_pinned_mem_limit {pid} 0"
    ) == ["25.0", "1G"]
    after = started(mps.client(daemon))
    assert after.call("multiprocessors") == [SUCCESS, 33]
    assert after.call("allocate", 2048)[0] == OUT_OF_MEMORY
    assert before.call("allocate", 2048)[0] == SUCCESS


def test_a_server_has_sixty_contexts_on_a_device(mps: Mps, daemon: MpsDaemon) -> None:
    clients = [mps.client(daemon) for _ in range(61)]
    for client in clients:
        client.ask("init")
        client.ask("create")
    codes = [client.answer() + client.answer() for client in clients]
    assert sorted(codes) == [[SUCCESS, SUCCESS]] * 60 + [[SUCCESS, MAX_CLIENTS_REACHED]]


# Ends


def test_clients_of_a_killed_server_cannot_go_on_and_new_ones_have_a_new_server(
    mps: Mps, daemon: MpsDaemon
) -> None:
    client = started(mps.client(daemon))
    assert client.call("synchronize") == [SUCCESS]
    pid = server(daemon)
    os.kill(pid, signal.SIGKILL)
    assert client.call("synchronize") == [RPC_FAILURE]
    started(mps.client(daemon))
    assert server(daemon) != pid


def test_a_killed_daemon_takes_its_servers_with_it(mps: Mps, daemon: MpsDaemon) -> None:
    client = started(mps.client(daemon))
    daemon.signal(signal.SIGKILL)
    wait_until(lambda: client.call("synchronize") == [RPC_FAILURE])
    # The socket is still there, but a process that finds nobody behind it computes by itself.
    alone = mps.client(daemon, CUDA_VISIBLE_DEVICES=uuid(daemon.node))
    wait_until(lambda: alone.start() == [SUCCESS, SUCCESS])
    outsider = mps.client(daemon, CUDA_VISIBLE_DEVICES=uuid(daemon.node))
    assert outsider.start() == [SUCCESS, UNAVAILABLE]


def test_quit_waits_for_clients(mps: Mps, daemon: MpsDaemon) -> None:
    client = started(mps.client(daemon))
    with subprocess.Popen(
        [daemon.node.mps_control], env=daemon.environment, stdin=subprocess.PIPE
    ) as command:
        assert command.stdin is not None
        command.stdin.write(b"quit\n")
        command.stdin.flush()
        wait_until(lambda: "Cmd:quit" in daemon.log())
        assert client.call("synchronize") == [SUCCESS]
        assert command.poll() is None
        client.end()
        assert (command.wait(10), daemon.wait()) == (0, 0)


def test_quit_with_a_timeout_kills_servers_that_still_have_clients(
    mps: Mps, daemon: MpsDaemon
) -> None:
    client = started(mps.client(daemon))
    assert daemon.command("quit -t 0") == []
    assert daemon.wait() == 0
    assert client.call("synchronize") == [RPC_FAILURE]


def test_a_server_told_to_shut_down_waits_for_its_clients(mps: Mps, daemon: MpsDaemon) -> None:
    client = started(mps.client(daemon))
    pid = server(daemon)
    assert daemon.command(f"shutdown_server {pid}") == []
    assert client.call("synchronize") == [SUCCESS]
    waiting = mps.client(daemon)
    waiting.ask("init")
    client.end()
    assert waiting.answer() == [SUCCESS]
    assert server(daemon) != pid


def test_a_terminated_client_learns_so_and_the_others_go_on(mps: Mps, daemon: MpsDaemon) -> None:
    first, second = started(mps.client(daemon)), started(mps.client(daemon))
    assert daemon.command(f"terminate_client {server(daemon)} {first.pid}") == []
    wait_until(lambda: first.call("synchronize") == [TERMINATED])
    assert second.call("synchronize") == [SUCCESS]


# Other users


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts processes of other users")
def test_users_compute_one_after_another(mps: Mps) -> None:
    node = mps.node_for_all_users("t4")
    daemon = mps.daemon(node)
    first = started(mps.client(daemon))
    assert owner(server(daemon)) == 0
    other = mps.client(daemon, user=OTHER_USER)
    other.ask("init")
    wait_until(lambda: any(f"from user {OTHER_USER}" in line for line in daemon.log()))
    assert daemon.command(f"start_server -uid {OTHER_USER}") == [
        f"A server for user {OTHER_USER} cannot be started"
    ]
    assert (owner(server(daemon)), first.call("synchronize")) == (0, [SUCCESS])
    waits = f"from user {OTHER_USER}: Server is not ready, push client to pending list"
    assert any(line.endswith(waits) for line in daemon.log())
    first.end()
    assert other.answer() == [SUCCESS]
    assert owner(server(daemon)) == OTHER_USER


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts processes of other users")
def test_with_one_server_for_all_users_they_compute_together(mps: Mps) -> None:
    node = mps.node_for_all_users("t4")
    daemon = mps.daemon(node, "-M")
    first, other = started(mps.client(daemon)), started(mps.client(daemon, user=OTHER_USER))
    assert daemon.command(f"get_client_list {server(daemon)}") == [str(first.pid), str(other.pid)]
    assert owner(server(daemon)) == 0


def owner(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


# MIG instances and modes


def test_a_mig_instance_on_which_a_server_computes_cannot_be_destroyed(
    mps: Mps, sim_node: MakeNode
) -> None:
    instances = [{"profile": "3g.40gb", "start": 0, "compute": ["3c"]}]
    gpus = [{"index": 0, "mig": {"mode": "on", "instances": instances}}]
    node = sim_node("dgx-h100", overrides={"gpu_count": 1, "gpus": gpus})
    daemon = mps.daemon(node)
    client = started(mps.client(daemon))
    client.end()
    assert destroy_compute_instance(node) == IN_USE
    [instance] = report.mig_devices(state.load(node.state))
    assert instance["computing"]
    for destroy, ids in (
        (mig_changes.destroy, (instance["gpu_instance"],)),
        (mig_changes.destroy_compute, (instance["gpu_instance"], instance["compute_instance"])),
    ):
        with pytest.raises(state.StateError, match="in use"):
            destroy(state.load(node.state), node.description.gpus[0], *ids)
    daemon.command("quit")
    assert destroy_compute_instance(node) == SUCCESS


def test_a_gpu_on_which_a_server_computes_keeps_its_mig_mode(mps: Mps, daemon: MpsDaemon) -> None:
    def switch() -> int:
        daemon.node.run(daemon.node.smi, "-i", uuid(daemon.node), "-mig", "1")
        return int(state.load(daemon.node.state).snapshot().gpus[1].mig_mode)

    started(mps.client(daemon)).end()
    assert switch() == 0
    daemon.command("quit")
    assert switch() == 1


def destroy_compute_instance(node: SimulatedNode) -> int:
    program = """
import pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
device = n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
instance = n.nvmlDeviceGetGpuInstanceById(gpu, n.nvmlDeviceGetGpuInstanceId(device))
part = n.nvmlGpuInstanceGetComputeInstanceById(instance, n.nvmlDeviceGetComputeInstanceId(device))
try:
    n.nvmlComputeInstanceDestroy(part)
    print(0)
except n.NVMLError as error:
    print(error.value)
"""
    done = node.run(sys.executable, "-c", program)
    return int(done.stdout)
