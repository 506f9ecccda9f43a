# SPDX-License-Identifier: Apache-2.0
"""`lab` starts a real cluster in which everything is reachable, and leaves nothing behind.

These tests use labs of their own, beside those that are up.
"""

import base64
import contextlib
import http.client
import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvdra_testing.cluster import lab_command, layered_archive
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.lab_command import Lab

pytestmark = pytest.mark.timeout(900)  # the first start on a machine builds the programs

WORKLOAD = "docker.io/nvdra/workload:1"


@pytest.fixture(scope="module")
def kube(request: pytest.FixtureRequest) -> str:
    """The option for the Kubernetes release of these labs."""
    return f"--kube={request.config.getoption('--kube')}"


@pytest.fixture(scope="module")
def lab(kube: str) -> Iterator[Lab]:
    lab = Lab("selftest")
    lab.run_checked("up", "--nodes", "2", kube)
    yield lab
    lab.run_checked("down")


@pytest.fixture(scope="module")
def pods(lab: Lab) -> Kubectl:
    """Two pods, one on each node."""
    kubectl = lab.kubectl()
    kubectl.apply(web("first", "node-1"))
    kubectl.apply(web("second", "node-2"))
    kubectl.wait_running("first", "second")
    return kubectl


def web(name: str, node: str) -> dict[str, Any]:
    """A pod on that node that serves its own name."""
    script = f"mkdir /w && echo {name} > /w/index.html && echo serving && exec httpd -f -h /w"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "web",
                    "image": WORKLOAD,
                    "command": ["sh", "-c", script],
                    "readinessProbe": {"httpGet": {"port": 80}, "periodSeconds": 1},
                }
            ],
        },
    }


def fetch(url: str, context: ssl.SSLContext | None = None) -> str:
    with urllib.request.urlopen(url, timeout=30, context=context) as answer:
        return str(answer.read().decode())


def cgroups(lab: Lab) -> set[str]:
    """The cgroups of the lab's processes that are not ours."""
    found: set[str] = set()
    for pid in lab.processes():
        with contextlib.suppress(OSError):  # it has ended since
            found |= set(Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    return found - set(Path("/proc/self/cgroup").read_text().splitlines())


def containers(lab: Lab) -> set[str]:
    """The containers of the lab's first node."""
    listing = ["ctr", "--namespace=k8s.io", "containers", "list", "--quiet"]
    return set(lab.run_checked("exec", "node-1", "--", *listing).split())


def is_unwell(lab: Lab) -> bool:
    """Whether `lab status` reports a problem."""
    return lab.run("status").returncode != 0


def identity(file: str) -> dict[str, object]:
    """The claims of a bearer token, without verification."""
    payload = file.split(".")[1]
    claims: dict[str, object] = json.loads(base64.urlsafe_b64decode(payload + "=="))
    return claims


def test_a_plain_pod_runs_on_each_node_and_can_be_entered_and_read(pods: Kubectl) -> None:
    assert pods.exec("first", "hostname").strip() == "first"
    assert pods.exec("second", "cat", "/w/index.html").strip() == "second"
    assert pods.logs("second").strip() == "serving"


def test_a_service_answers_from_pod_host_and_api_server(pods: Kubectl) -> None:
    ports = [{"port": 80}]
    spec = {"selector": {"app": "web"}, "ports": ports}
    pods.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec})
    address = pods.get("service", "web")["spec"]["clusterIP"]
    path = f"/api/v1/namespaces/{pods.namespace}/services/web/proxy/"

    def lacking() -> str | None:
        try:
            seen = {fetch(f"http://{address}/").strip() for _ in range(20)}
        except (OSError, http.client.HTTPException) as error:
            return str(error)
        return None if seen == {"first", "second"} else f"only {seen}"

    def answered(*asking: str) -> str | None:
        seen = {pods.run_unchecked(*asking).stdout.strip() for _ in range(20)}
        return None if seen == {"first", "second"} else f"only {seen}"

    pods.wait(lacking, "the Service to answer with both its pods from the host")
    from_pod = partial(answered, "exec", "first", "--", "wget", "-qO-", address)
    pods.wait(from_pod, "it to answer with both from a pod")
    from_api_server = partial(answered, "get", "--raw", path)
    pods.wait(from_api_server, "it to answer with both from the API server")


def test_a_pod_reaches_the_api_server_under_the_address_it_is_told(pods: Kubectl) -> None:
    pods.wait(partial(unreachable, pods), "the API server to be reached")


def unreachable(pods: Kubectl) -> str | None:
    """Why a pod does not reach the API server; None if it does."""
    script = "nc -w 3 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT < /dev/null && echo yes"
    done = pods.run_unchecked("exec", "first", "--", "sh", "-c", script)
    return None if done.stdout.strip() == "yes" else done.stderr or "no answer"


def test_a_pods_token_is_bound_to_it(pods: Kubectl) -> None:
    path = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    claims = identity(pods.exec("first", "cat", path))
    bound = claims["kubernetes.io"]
    assert isinstance(bound, dict)
    assert bound["pod"]["name"] == "first"
    assert bound["node"]["name"] == "node-1"


def test_a_kubelet_turns_strangers_away(lab: Lab) -> None:
    address = lab.kubectl().get("node", "node-1")["status"]["addresses"][0]["address"]
    stranger = ssl.create_default_context()
    stranger.check_hostname = False
    stranger.verify_mode = ssl.CERT_NONE
    with pytest.raises(urllib.error.HTTPError, match="401"):
        fetch(f"https://{address}:10250/pods", stranger)


def test_a_node_may_label_itself_but_not_as_it_likes_and_not_another(lab: Lab) -> None:
    def label(node: str, label: str) -> tuple[int, str]:
        kubeconfig = "--kubeconfig=/etc/kubernetes/kubelet.conf"
        words = ["kubectl", kubeconfig, "label", "node", node, "--overwrite", label]
        done = lab.run("exec", "node-1", "--", *words)
        return done.returncode, done.stderr

    assert label("node-1", "example.com/a=b")[0] == 0
    status, message = label("node-1", "node-restriction.kubernetes.io/a=b")
    assert status == 1
    assert "is not allowed to modify labels" in message
    status, message = label("node-2", "example.com/a=b")
    assert status == 1
    assert "only its own Node object" in message


def test_each_node_has_gpus_of_its_own(lab: Lab) -> None:
    listed = [
        lab.run_checked("exec", node, "--", "nvidia-smi", "-L") for node in ("node-1", "node-2")
    ]
    gpus = [line for text in listed for line in text.splitlines()]
    assert len(gpus) == len(set(gpus)) == 16
    nodes = lab.run_checked("exec", "node-1", "--", "ls", "/dev").split()
    assert {f"nvidia{minor}" for minor in range(8)} <= set(nodes)
    assert not list(Path("/dev").glob("nvidia*"))


def test_every_node_is_labelled_and_takes_pods(lab: Lab) -> None:
    nodes = lab.kubectl().get("nodes", "", "-l", "nvidia.com/gpu.present=true")
    assert [node["metadata"]["name"] for node in nodes] == ["node-1", "node-2"]
    status = json.loads(lab.run_checked("status", "--json"))
    assert {node["is_ready"] for node in status["nodes"]} == {True}
    assert {part["state"] for part in status["components"]} == {"running"}
    assert len(status["components"]) == 9


def test_an_image_is_unpacked_once_and_each_node_has_its_own_changes(
    lab: Lab, tmp_path: Path
) -> None:
    lab.run_checked("image", "load", str(layered_archive.write(tmp_path / "layered.tar")))
    kubectl = lab.kubectl()
    for node in ("node-1", "node-2"):
        pod = web(f"linked-{node}", node)
        pod["spec"]["containers"][0]["image"] = layered_archive.REFERENCE
        kubectl.apply(pod)
    pods = ("linked-node-1", "linked-node-2")
    kubectl.wait_running(*pods)
    marker = ("stat", "-c", "%i %h %a %u", "/marker")
    first, second = [kubectl.exec(pod, *marker) for pod in pods]
    assert first == second
    assert first.split()[1:] == ["2", "640", "7"]
    kubectl.exec(pods[0], "sh", "-c", "echo mine > /marker; rm /bin/httpd")
    kubectl.exec(pods[0], "sh", "-c", "rm /marker")
    assert kubectl.exec(pods[1], "cat", "/marker") == layered_archive.MARKER
    kubectl.delete("pod", *pods)


def test_a_link_that_is_cut_loses_one_port_of_two_nodes_until_it_is_mended(
    lab: Lab, pods: Kubectl
) -> None:
    def answers(asker: str, asked: str) -> bool:
        address = pods.get("pod", asked)["status"]["podIP"]
        asking = ("exec", asker, "--", "timeout", "3", "wget", "-qO-", address)
        done = pods.run_unchecked(*asking)
        return done.stdout.strip() == asked

    def silent() -> str | None:
        is_heard = answers("first", "second") and answers("second", "first")
        return None if is_heard else "a pod does not answer"

    pods.wait(silent, "both pods to answer: a node may have been rebooted just now", 60)
    lab.run_checked("cut-link", "node-1", "node-2", "--port", "81")
    pods.wait(lambda: None if answers("first", "second") else "silent", "an answer at another port")
    lab.run_checked("cut-link", "node-2", "node-1", "--port", "80")
    assert not answers("first", "second")
    assert not answers("second", "first")
    assert "is cut already" in lab.run("cut-link", "node-1", "node-2", "--port", "80").stderr
    lab.run_checked("mend-link", "node-1", "node-2", "--port", "80")
    pods.wait(silent, "both pods to answer again")
    assert "is not cut" in lab.run("mend-link", "node-1", "node-2", "--port", "80").stderr
    lab.run_checked("mend-link", "node-1", "node-2", "--port", "81")
    assert "which is the other" in lab.run("cut-link", "node-1", "node-1").stderr
    assert "node-9" in lab.run("cut-link", "node-1", "node-9").stderr


def test_a_node_without_power_is_silent_and_comes_back_with_another_boot_and_its_disk(
    lab: Lab, pods: Kubectl
) -> None:
    def on_node(*command: str) -> str:
        return lab.run_checked("exec", "node-2", "--", *command)

    def states() -> dict[str, str]:
        report = json.loads(lab.run("status", "--json").stdout)
        return {each["name"]: each["state"] for each in report["components"]}

    def well() -> str | None:
        return lab.run("status").stdout if is_unwell(lab) else None

    boot = "/run/nvidia/proc/sys/kernel/random/boot_id"
    before = on_node("cat", boot)
    on_node("sh", "-c", "echo kept > /var/lib/kept; echo lost > /run/lost")
    lab.run_checked("power-off", "node-2")
    off = states()
    assert off["node-2"] == "off"
    assert off["node-1/kubelet"] == "running"
    assert not [name for name in off if name.startswith("node-2/")]
    address = pods.get("node", "node-2")["status"]["addresses"][0]["address"]
    dialled = ["bash", "-c", f"timeout 1 bash -c '</dev/tcp/{address}/10250'"]
    silent = lab.run("exec", "node-1", "--", *dialled)
    assert silent.returncode != 0
    assert "refused" not in silent.stderr, "packets are lost"
    assert "is off already" in lab.run("power-off", "node-2").stderr

    lab.run_checked("power-on", "node-2")
    assert on_node("cat", boot) != before
    assert on_node("cat", "/var/lib/kept") == "kept\n"
    assert lab.run("exec", "node-2", "--", "ls", "/run/lost").returncode != 0
    assert "is on" in lab.run("power-on", "node-2").stderr
    pods.wait(well, "the node to be Ready")
    wait_entered(pods, "second")

    lab.run_checked("power-off", "node-2")
    lab.run_checked("reboot", "node-2")
    pods.wait(well, "the node to be Ready")
    # Its status may still be that before the reboot, and so may the node's.
    pods.wait(partial(not_serving, pods, "second"), "the pod to serve again", timeout_s=100)
    pods.wait_running("first", "second", timeout_s=100)
    pods.wait(well, "the node to be Ready")


def test_a_kubelet_that_is_restarted_keeps_its_pods(lab: Lab, pods: Kubectl) -> None:
    before = pods.get("pod", "first")["status"]["containerStatuses"][0]["containerID"]
    lab.run_checked("restart", "node-1/kubelet")
    assert "Started kubelet" in lab.run_checked("logs", "node-1/kubelet")

    wait_entered(pods, "first")
    after = pods.get("pod", "first")["status"]["containerStatuses"][0]["containerID"]
    assert after == before
    pods.wait(lambda: lab.run("status").stdout if is_unwell(lab) else None, "all to be well again")


def not_serving(pods: Kubectl, name: str) -> str | None:
    """What is wrong with a pod that should serve its name; None if it does."""
    page = pods.run_unchecked("exec", name, "--", "cat", "/w/index.html")
    if page.stdout.strip() != name:
        return page.stderr or "no page"
    told = pods.run_unchecked("logs", name).stdout.strip()
    return None if told == "serving" else told or "it has said nothing"


def wait_entered(pods: Kubectl, name: str) -> None:
    """Wait until a pod can be entered: a kubelet that starts learns of its pods a little later."""

    def lacking() -> str | None:
        return pods.run_unchecked("exec", name, "--", "true").stderr or None

    pods.wait(lacking, f"the kubelet to know pod {name}")


def test_an_api_server_that_clients_watch_is_restarted(lab: Lab, pods: Kubectl) -> None:
    watch = [*pods.argv(), "get", "pods", "--watch"]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline()  # the watch is open, or will be in a moment
        lab.run_checked("restart", "kube-apiserver")
        watching.kill()
    pods.wait(lambda: lab.run("status").stdout if is_unwell(lab) else None, "all to be well again")
    # It answers some time before it is ready; its Service leads to it only then, and a kubelet that
    # has asked it too early whether it may be asked remembers a no for half a minute.
    pods.wait(
        lambda: pods.run_unchecked("get", "--raw", "/readyz").stderr or None, "it to be ready"
    )
    for name in ("first", "second"):
        wait_entered(pods, name)
    pods.wait(partial(unreachable, pods), "its Service to lead to it")


def test_another_labs_kubeconfig_makes_an_existing_cluster(lab: Lab) -> None:
    other = Lab("borrowed")
    kubeconfig = str(lab.kubectl().kubeconfig)
    other.run_checked("up", "--provider", "existing", "--kubeconfig", kubeconfig)
    try:
        assert len(other.kubectl().get("nodes")) == 2
        assert json.loads(other.run_checked("status", "--json"))["provider"] == "existing"
        refused = other.run("exec", "node-1", "--", "true")
        assert refused.returncode == 1
        assert "existing cluster" in refused.stderr
    finally:
        other.run_checked("down")
    assert len(lab.kubectl().get("nodes")) == 2


def test_a_lab_shares_nothing_with_its_neighbour_and_leaves_nothing(
    lab: Lab, pods: Kubectl, kube: str
) -> None:
    second = Lab("neighbour")
    before = lab_command.host_snapshot()
    second.run_checked("up", "--nodes", "2", "--profile", "t4", kube)
    try:
        assert second.run("up").returncode == 1, "a lab that is up is not brought up again"
        assert lab_command.host_snapshot() != before
        kubectl = second.kubectl()
        kubectl.apply(web("first", "node-1"))
        kubectl.wait_running("first")
        address = kubectl.get("service", "kubernetes")["spec"]["clusterIP"]
        assert address != lab.kubectl().get("service", "kubernetes")["spec"]["clusterIP"]
        namespaces = second.namespaces()
        assert len(second.processes()) > 10
        assert not namespaces & lab.namespaces()
        assert not second.processes() & lab.processes()
        assert cgroups(lab)
        assert not cgroups(second) & cgroups(lab)
        ours, theirs = containers(lab), containers(second)
        assert min(len(ours), len(theirs)) >= 2  # a sandbox and a container
        assert not ours & theirs
        assert "t4" in json.loads(second.run_checked("status", "--json"))["profile"]
        kubectl.delete("pod", "first")
        assert pods.exec("first", "hostname").strip() == "first"
    finally:
        second.run_checked("down")

    assert lab_command.host_snapshot().added_since(before) == {}
    assert lab_command.processes_in(namespaces) == set()
    assert second.leftovers() == []
    assert not second.folder.exists()
    assert lab.run("status").returncode == 0


def test_a_failing_start_names_the_component_and_cleans_up(tmp_path: Path) -> None:
    broken = tmp_path / "etcd"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exec echo etcd Version: 3.6.15\n'
        "echo the disk is made of cheese\nexit 7\n"
    )
    broken.chmod(0o755)
    before = lab_command.host_snapshot()
    failed = Lab("broken").run("up", env={"KUBEBUILDER_ASSETS": str(tmp_path)})
    assert failed.returncode == 1
    assert "etcd: ended with 7" in failed.stderr
    assert "the disk is made of cheese" in failed.stderr
    (whole,) = [line for line in failed.stderr.splitlines() if line.startswith("the whole log:")]
    assert "made of cheese" in Path(whole.partition(": ")[2]).read_text()
    assert lab_command.host_snapshot().added_since(before) == {}


def test_a_start_that_is_interrupted_cleans_up() -> None:
    before = lab_command.host_snapshot()
    argv = [str(lab_command.LAB_PROGRAM), "up", "--name", "cut"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "machines in their namespaces" in line:
            process.terminate()
            break
    rest = process.stderr.read()
    assert process.wait() == 130, rest
    process.stderr.close()
    assert lab_command.host_snapshot().added_since(before) == {}


def test_an_unknown_release_is_refused_before_anything_starts() -> None:
    refused = Lab("old").run("up", "--kube", "1.12")
    assert refused.returncode == 1
    assert "known: " in refused.stderr


def test_the_kubeconfig_of_a_lab_is_its_owners_alone(lab: Lab) -> None:
    kubeconfig = lab.kubectl().kubeconfig
    assert kubeconfig.stat().st_mode & 0o077 == 0
    assert yaml.safe_load(kubeconfig.read_text())["current-context"] == "nvdra-lab-selftest"
