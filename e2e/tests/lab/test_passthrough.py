# SPDX-License-Identifier: Apache-2.0
"""A lab with `--passthrough`: pods change the drivers of GPUs, and nothing is left that waits.

There is no driver of nvdra in these labs: the pods do what its plugin does.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from platform import release
from typing import Any

import pytest
import yaml
from nvdra_lab.machines import passthrough
from nvdra_testing.cluster import lab_command
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.lab_command import Lab

pytestmark = pytest.mark.timeout(900)  # the first start on a machine builds the programs

WORKLOAD = "docker.io/nvdra/workload:1"
SYS = "/run/nvidia/sys"
PCI = f"{SYS}/bus/pci"
VIRTUAL_MACHINE = Path(__file__).parents[2] / "cluster/virtual-machine.yaml"
CDI_KIND = "example.com/vfio"
PATIENCE_S = 60.0
DOWN_S = 20.0
"""Taking down a lab of one node takes one or two seconds."""


@pytest.fixture(scope="module")
def kube(request: pytest.FixtureRequest) -> str:
    """The option for the Kubernetes release of these labs."""
    return f"--kube={request.config.getoption('--kube')}"


@contextlib.contextmanager
def running(name: str, kube: str) -> Iterator[Lab]:
    """A lab of one node with four T4 and a pod, which the block may take down."""
    lab = Lab(name)
    lab.run_checked("up", "--nodes", "1", "--profile", "t4", "--passthrough", kube)
    try:
        kubectl = lab.kubectl()
        kubectl.apply(plugin("plugin", propagation="HostToContainer"))
        kubectl.wait_running("plugin")
        yield lab
    finally:
        lab.run("down")


@pytest.fixture(scope="module")
def lab(kube: str) -> Iterator[Lab]:
    with running("passthrough", kube) as lab:
        yield lab


@pytest.fixture(scope="module")
def pods(lab: Lab) -> Kubectl:
    return lab.kubectl()


def plugin(name: str, propagation: str) -> dict[str, Any]:
    """A pod with the volumes that the chart gives the plugin with the gate PassthroughSupport."""
    volumes = {
        "sys": (SYS, SYS, False, propagation),
        "programs": ("/run/nvidia", "/driver-root", False, "HostToContainer"),
        "host-proc": ("/proc", "/host/proc", True, "None"),
        "modules": ("/lib/modules", "/lib/modules", True, "None"),
    }
    mounts = [
        {
            "name": volume,
            "mountPath": inside,
            "readOnly": is_read_only,
            "mountPropagation": propagated,
        }
        for volume, (_, inside, is_read_only, propagated) in volumes.items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "plugin",
                    "image": WORKLOAD,
                    "command": ["sleep", "1000000"],
                    "env": [{"name": "PATH", "value": "/driver-root/bin:/usr/bin:/bin"}],
                    "volumeMounts": mounts,
                }
            ],
            "volumes": [
                {"name": volume, "hostPath": {"path": path}}
                for volume, (path, *_) in volumes.items()
            ],
        },
    }


def manifest() -> list[dict[str, Any]]:
    """The objects of a virtual machine's stand-in."""
    return list(yaml.safe_load_all(VIRTUAL_MACHINE.read_text()))


def write(pods: Kubectl, path: str, text: str, pod: str = "plugin") -> str:
    """The error of a write in a pod; empty for success."""
    done = pods.run_unchecked("exec", pod, "--", "sh", "-c", f"echo {text} > {path}")
    return done.stderr.partition("\n")[0] if done.returncode else ""


def driver(pods: Kubectl, address: str, pod: str = "plugin") -> str:
    """The driver of a function as a pod sees it; empty: none."""
    link = pods.run_unchecked("exec", pod, "--", "readlink", f"{PCI}/devices/{address}/driver")
    return link.stdout.strip().rpartition("/")[2]


def gpus(lab: Lab) -> list[str]:
    """The PCI addresses of the GPUs of node-1."""
    listed = lab.run_checked("exec", "node-1", "--", "nvdra-simctl", "pci", "list").splitlines()
    found = [line.split()[0] for line in listed[1:]]
    return [address for address in found if address.endswith(":00.0")]


def to_vfio(pods: Kubectl, address: str) -> None:
    assert pods.exec("plugin", "modprobe", "vfio-pci") == ""
    assert write(pods, f"{PCI}/devices/{address}/driver_override", "vfio-pci") == ""
    assert write(pods, f"{PCI}/drivers/nvidia/unbind", address) == ""
    assert write(pods, f"{PCI}/drivers/vfio-pci/bind", address) == ""


def to_nvidia(pods: Kubectl, address: str) -> None:
    assert write(pods, f"{PCI}/devices/{address}/driver_override", "''") == ""
    assert write(pods, f"{PCI}/drivers/vfio-pci/unbind", address) == ""
    assert write(pods, f"{PCI}/drivers/nvidia/bind", address) == ""


def server(lab: Lab) -> int:
    """The server of node-1's sysfs, as this machine numbers it; 0 while it is down."""
    (served,) = (each for each in components(lab) if each["name"] == "node-1/sysfs")
    return int(served["pid"])


def components(lab: Lab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(lab.run("status", "--json").stdout)["components"]
    return found


def wait_until(is_so: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, f"not true in time: {what}"
        time.sleep(0.05)


def processes_of(lab: Lab, words: str) -> list[int]:
    return [pid for pid in lab.processes() if words in lab_command.command_line(pid)]


def state_of(pid: int) -> str:
    """The letter of a process's state; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_the_server_of_a_nodes_sysfs_is_one_of_its_components(lab: Lab) -> None:
    (served,) = (each for each in components(lab) if each["name"].endswith(f"/{passthrough.UNIT}"))
    assert (served["name"], served["state"]) == ("node-1/sysfs", "running")


def test_a_pod_sees_the_processes_and_the_modules_of_its_node(pods: Kubectl) -> None:
    names = pods.exec("plugin", "sh", "-c", "cat /host/proc/[0-9]*/comm")
    assert {"kubelet", "containerd", "sleep"} <= set(names.split())
    own = pods.exec("plugin", "sh", "-c", "ls /proc | grep -c '^[0-9]'")
    assert int(own) < 6, "its own /proc shows no others"
    aliases = pods.exec("plugin", "cat", f"/lib/modules/{release()}/modules.alias")
    assert "vfio_pci" in aliases
    refused = pods.run_unchecked("exec", "plugin", "--", "touch", "/lib/modules/new")
    assert "Read-only file system" in refused.stderr


def test_a_pod_changes_the_driver_of_a_gpu_and_gets_the_kernels_errors(
    lab: Lab, pods: Kubectl
) -> None:
    pci, other = gpus(lab)[:2]
    to_vfio(pods, pci)
    assert driver(pods, pci) == "vfio-pci"
    assert pods.exec("plugin", "cat", f"{PCI}/devices/{pci}/driver_override") == "vfio-pci\n"
    group = Path(pods.exec("plugin", "readlink", f"{PCI}/devices/{pci}/iommu_group").strip()).name
    nodes = lab.run_checked("exec", "node-1", "--", "ls", "/dev/vfio").split()
    assert {group, "vfio"} <= set(nodes)

    busy, absent = "Device or resource busy", "No such device"
    assert busy in write(pods, f"{PCI}/drivers/vfio-pci/bind", pci), "it is bound"
    assert absent in write(pods, f"{PCI}/drivers/nvidia/unbind", pci), "another driver has it"
    assert absent in write(pods, f"{PCI}/drivers/vfio-pci/bind", "0000:ff:00.0")
    assert absent in write(pods, f"{PCI}/drivers/vfio-pci/unbind", other)
    assert driver(pods, other) == "nvidia"

    to_nvidia(pods, pci)
    assert driver(pods, pci) == "nvidia"
    query = ("--query-gpu=pci.bus_id", "--format=csv,noheader")
    listed = lab.run_checked("exec", "node-1", "--", "nvidia-smi", *query)
    assert pci in listed.lower()


def test_pods_with_propagation_see_the_next_server_and_others_do_not(
    lab: Lab, pods: Kubectl
) -> None:
    pods.apply(plugin("private", propagation="None"))
    pods.wait_running("private")
    pci = gpus(lab)[0]
    assert driver(pods, pci, "private") == "nvidia"

    lab.run_checked("restart", "node-1/sysfs")  # in order, so that it could unmount
    wait_until(lambda: driver(pods, pci) == "nvidia", "the pod sees the next one")
    killed = server(lab)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: server(lab) not in (0, killed), "another server")
    wait_until(lambda: driver(pods, pci) == "nvidia", "the pod sees the one after")
    to_vfio(pods, pci)
    to_nvidia(pods, pci)

    left = pods.run_unchecked("exec", "private", "--", "ls", SYS)
    assert "Socket not connected" in left.stderr or "not connected" in left.stderr
    pods.delete("pod", "private")


def test_a_virtual_machines_process_holds_the_gpu_that_its_container_was_given(
    lab: Lab, pods: Kubectl
) -> None:
    """By a CDI spec as the plugin writes it; `ctr` takes the place of scheduler and kubelet."""
    pods.run("apply", "--dry-run=server", "-f", str(VIRTUAL_MACHINE))
    (pod,) = (each for each in manifest() if each["kind"] == "Pod")
    (container,) = pod["spec"]["containers"]
    paths = {each["name"]: each["hostPath"]["path"] for each in pod["spec"]["volumes"]}
    pci = gpus(lab)[2]
    to_vfio(pods, pci)
    group = Path(pods.exec("plugin", "readlink", f"{PCI}/devices/{pci}/iommu_group").strip()).name
    nodes = [{"path": f"/dev/vfio/{name}"} for name in ("vfio", group)]
    spec = {
        "cdiVersion": "0.6.0",
        "kind": CDI_KIND,
        "devices": [{"name": "gpu", "containerEdits": {"deviceNodes": nodes}}],
    }
    where = lab.folder / "machines/node-1/run/cdi"
    where.mkdir(exist_ok=True)
    (where / "vm.json").write_text(json.dumps(spec))
    mounts = [
        f"--mount=type=bind,src={paths[each['name']]},dst={each['mountPath']},options=rbind:ro"
        for each in container["volumeMounts"]
    ]
    ctr = ("exec", "node-1", "--", "ctr", "--namespace=k8s.io")
    lab.run_checked(
        *ctr, "run", "--detach", f"--device={CDI_KIND}=gpu",
        *mounts, WORKLOAD, "machine", *container["command"],
    )  # fmt: skip
    wait_until(lambda: processes_of(lab, "nvdra-sim-vmm"), "the process runs")

    unbind = f"echo {pci} > {PCI}/drivers/vfio-pci/unbind"
    with subprocess.Popen([*pods.argv(), "exec", "plugin", "--", "sh", "-c", unbind]) as unbinding:
        wait_until(lambda: driver(pods, pci) == "", "the link is gone")
        time.sleep(0.5)
        assert unbinding.poll() is None, "the machine has the device open"
        lab.run_checked(*ctr, "task", "kill", "--signal=SIGTERM", "machine")
        assert unbinding.wait(PATIENCE_S) == 0
    wait_until(lambda: not processes_of(lab, "nvdra-sim-vmm"), "SIGTERM has ended it")
    lab.run_checked(*ctr, "task", "delete", "machine")
    lab.run_checked(*ctr, "container", "delete", "machine")


def test_a_rebooted_node_ends_who_waits_and_has_its_drivers_as_at_a_boot(
    lab: Lab, pods: Kubectl
) -> None:
    pci, held = gpus(lab)[:2]
    to_vfio(pods, pci)
    with waiting_unbind(lab, pods, held):
        lab.run_checked("reboot", "node-1")
    listed = lab.run_checked("exec", "node-1", "--", "nvdra-simctl", "pci", "list")
    assert "vfio" not in listed.partition("\n")[2]
    pods.wait(
        lambda: None if driver(pods, pci) == "nvidia" else "no answer", "the pod to run again"
    )


@contextlib.contextmanager
def waiting_unbind(lab: Lab, pods: Kubectl, address: str) -> Iterator[int]:
    """A process of a pod that unbinds a GPU which a part of the kernel uses: it is in state D."""
    index = str(gpus(lab).index(address))
    lab.run_checked("sim", "node-1", "gpu", "kernel-client", index, "on")
    script = f"echo {address} > {PCI}/drivers/nvidia/unbind"
    argv = [*pods.argv(), "exec", "plugin", "--", "sh", "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
        try:
            wait_until(lambda: driver(pods, address) == "", "the unbind waits")
            (writer,) = processes_of(lab, script)
            wait_until(lambda: state_of(writer) == "D", "nothing but the server ends it")
            yield writer
            assert client.wait(PATIENCE_S) != 0
        finally:
            client.kill()


def connection_of(serving: int) -> str:
    """The number of the FUSE connection that a server answers."""
    lines = Path(f"/proc/{serving}/mountinfo").read_text().splitlines()
    (fields,) = (line.split() for line in lines if f" {SYS} " in line and " - fuse " in line)
    return fields[2].partition(":")[2]


def connections() -> set[str]:
    """The numbers of all FUSE connections of this machine."""
    script = "mount -t fusectl fusectl /sys/fs/fuse/connections; ls /sys/fs/fuse/connections"
    listed = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=True
    )
    return set(listed.stdout.split())


FAILURES: dict[str, Callable[[int], None]] = {
    "none": lambda _: None,
    "killed": lambda pid: os.kill(pid, signal.SIGKILL),
    "stopped": lambda pid: os.kill(pid, signal.SIGSTOP),
}
"""What has happened to the server, by its process id, when the lab goes down."""


@pytest.mark.parametrize("failure", FAILURES)
def test_a_lab_goes_down_although_a_write_waits(failure: str, kube: str) -> None:
    before = lab_command.host_snapshot()
    with running("waiting", kube) as lab:
        pods, pci = lab.kubectl(), gpus(lab)[0]
        serving, namespaces = server(lab), lab.namespaces()
        connection = connection_of(serving)
        assert connection in connections()
        with waiting_unbind(lab, pods, pci) as writer:
            FAILURES[failure](serving)
            started = time.monotonic()
            lab.run_checked("down")
            assert time.monotonic() - started < DOWN_S
            assert state_of(writer) == ""
    assert lab_command.processes_in(namespaces) == set()
    assert connection not in connections()
    assert lab_command.host_snapshot().added_since(before) == {}
    assert lab.leftovers() == []
