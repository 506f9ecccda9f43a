# SPDX-License-Identifier: Apache-2.0
"""A job of two workers on two nodes, and a launcher that restarts the work until it succeeds.

It stands for an MPI job: numbers pass from worker to worker by TCP, round after round. A replaced
worker is found by its Service. The launcher then starts the work again, as an MPI launcher does.
The work goes on until the test lets it end, so that it lasts longer than any fault.
"""

from typing import Any

from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.kubectl import Kubectl

PORT = 7000
ROUNDS = 40
"""How many rounds without an error the work has at least."""
PAUSE_S = 0.1
ANSWER_S = 15
"""How long a worker may take to answer: longer than a busy machine pauses."""
MAY_END = "/tmp/may-end"
"""The work may end once the launcher has this file."""
PYTHON_COMMAND = ("python3", "-c")
"""Of workloads.PYTHON_IMAGE; a program follows."""

PROGRAM = """
import itertools, os, socket, socketserver, sys, time

PORT, ROUNDS, PAUSE_S, ANSWER_S = {port}, {rounds}, {pause}, {answer}

def asked(rank, text):
    host = os.environ[f"WORKER_{{rank}}_SERVICE_HOST"]
    with socket.create_connection((host, PORT), ANSWER_S) as peer:
        peer.settimeout(ANSWER_S)
        peer.sendall(text.encode() + b"\\n")
        answer = peer.makefile().readline().strip()
    if not answer:
        raise ConnectionError(f"worker {{rank}} hung up")
    return answer

class Worker(socketserver.StreamRequestHandler):
    def handle(self):
        number = self.rfile.readline().decode().strip()
        os.stat("/dev/nvidia-caps-imex-channels/channel0")
        through = "" if RANK else asked(1, number)
        self.wfile.write(f"{{through}} {{RANK}}:{{number}}\\n".encode())

def launch():
    while True:
        try:
            for number in itertools.count():
                assert asked(0, str(number)).split() == [f"1:{{number}}", f"0:{{number}}"]
                print("round", number, flush=True)
                if number + 1 >= ROUNDS and os.path.exists("{may_end}"):
                    return
                time.sleep(PAUSE_S)
        except OSError as error:
            print("again:", error, flush=True)
            time.sleep(0.3)

if sys.argv[1:] == ["launch"]:
    launch()
else:
    RANK = int(os.environ["HOSTNAME"].rpartition("-")[2])
    socketserver.ThreadingTCPServer.daemon_threads = True
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    socketserver.ThreadingTCPServer(("", PORT), Worker).serve_forever()
"""

Json = dict[str, Any]


def command(*arguments: str) -> list[str]:
    """The command of a worker or of the launcher."""
    text = PROGRAM.format(port=PORT, rounds=ROUNDS, pause=PAUSE_S, answer=ANSWER_S, may_end=MAY_END)
    return [*PYTHON_COMMAND, text, *arguments]


def workers(template: str) -> list[Json]:
    """Two workers with a channel each, which puts them on two nodes, and a Service for each."""
    container = {
        "name": "main",
        "image": workloads.PYTHON_IMAGE,
        "command": command(),
        "resources": {"claims": [{"name": "channel"}]},
    }
    pod = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "resourceClaims": [{"name": "channel", "resourceClaimTemplateName": template}],
    }
    selector = {"app": "worker"}
    services = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"worker-{rank}"},
            "spec": {
                "selector": {"statefulset.kubernetes.io/pod-name": f"worker-{rank}"},
                "ports": [{"port": PORT}],
            },
        }
        for rank in (0, 1)
    ]
    spec = {
        "replicas": 2,
        "podManagementPolicy": "Parallel",
        "serviceName": "worker",
        "selector": {"matchLabels": selector},
        "template": {"metadata": {"labels": selector}, "spec": pod},
    }
    sets = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "worker"},
        "spec": spec,
    }
    return [*services, sets]


def launcher(name: str) -> Json:
    """A Job that runs the work until `not_succeeded` tells it that it may end."""
    container = {"name": "main", "image": workloads.PYTHON_IMAGE, "command": command("launch")}
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }


def has_traffic(pods: Kubectl, job: str) -> str | None:
    """None if numbers are coming back; otherwise the launcher's last output."""
    done = pods.run_unchecked("logs", f"job/{job}", "--tail=1")
    return None if done.stdout.startswith("round ") else done.stdout or done.stderr


def start_count(pods: Kubectl, job: str) -> int:
    """How often a launcher has started its work: once, and again after each lost worker."""
    return pods.run("logs", f"job/{job}").splitlines().count("round 0")


def not_started_again(pods: Kubectl, job: str) -> str | None:
    """None if a launcher has started its work more than once; otherwise its last output."""
    return None if start_count(pods, job) > 1 else _last_words(pods, job)


def not_succeeded(pods: Kubectl, job: str) -> str | None:
    """None if a launcher has succeeded; otherwise it is told to end, and its last output."""
    if pods.get("job", job).get("status", {}).get("succeeded"):
        return None
    # It fails while the kubelet is away, and when the launcher has just ended.
    tell = (*PYTHON_COMMAND, f"open({MAY_END!r}, 'w').close()")
    pods.run_unchecked("exec", f"job/{job}", "--", *tell)
    return _last_words(pods, job)


def _last_words(pods: Kubectl, job: str) -> str:
    return pods.run_unchecked("logs", f"job/{job}", "--tail=3").stdout or "nothing"


def node_of(pods: Kubectl, rank: int) -> str:
    """The node of a worker."""
    return str(pods.get("pod", f"worker-{rank}")["spec"]["nodeName"])


def container_of(pods: Kubectl, rank: int) -> tuple[str, str]:
    """The UID of a worker's pod and its container ID; a replaced worker has others."""
    pod = pods.get("pod", f"worker-{rank}")
    (status,) = pod["status"]["containerStatuses"]
    return pod["metadata"]["uid"], status["containerID"]


def force_delete(pods: Kubectl, *names: str) -> None:
    """Delete pods without letting their processes end."""
    pods.run("delete", "pod", *names, "--grace-period=0", "--force", "--wait=false")
