"""A job of two workers on two nodes, and a launcher that sees it through, restarting its work.

It stands where an MPI job would: numbers pass from worker to worker by TCP, and the work is
done when every number of one run has come back. A worker that is replaced is found again by its
Service; the launcher begins anew, as a launcher of MPI does.
"""

from typing import Any

from kubectl import Kubectl
from nvdra_lab import environment, projects

PORT = 7000
ROUNDS = 40
PAUSE_S = 0.1
PYTHON = ("/opt/nvdra/bin/python3", "-c")
"""Of the image; a program follows."""

PROGRAM = """
import os, socket, socketserver, sys, time

PORT, ROUNDS, PAUSE_S = {port}, {rounds}, {pause}

def asked(rank, text):
    host = os.environ[f"WORKER_{{rank}}_SERVICE_HOST"]
    with socket.create_connection((host, PORT), 3) as peer:
        peer.settimeout(3)
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
            for number in range(ROUNDS):
                assert asked(0, str(number)).split() == [f"1:{{number}}", f"0:{{number}}"]
                print("round", number, flush=True)
                time.sleep(PAUSE_S)
            return
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


def image() -> str:
    """An image with Python that every node has: the daemon's."""
    (found,) = (
        each for each in projects.every(environment.read()) if each.name == "nvdra-imex-daemon"
    )
    return found.reference


def command(*arguments: str) -> list[str]:
    """The program in one of its parts."""
    text = PROGRAM.format(port=PORT, rounds=ROUNDS, pause=PAUSE_S)
    return [*PYTHON, text, *arguments]


def workers(template: str) -> list[Json]:
    """Two workers with a channel each, and so on two nodes; a Service for each."""
    container = {
        "name": "main",
        "image": image(),
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
    """A Job that sees one run of the work through."""
    container = {"name": "main", "image": image(), "command": command("launch")}
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
    """Whether numbers come back already; what the launcher has said instead."""
    done = pods.attempt("logs", f"job/{job}", "--tail=1")
    return None if done.stdout.startswith("round ") else done.stdout or done.stderr


def begun(pods: Kubectl, job: str) -> int:
    """How often a launcher has begun its work: once, and again after each worker it lost."""
    return pods.run("logs", f"job/{job}").splitlines().count("round 0")


def not_succeeded(pods: Kubectl, job: str) -> str | None:
    """What a launcher says while it is not through."""
    if pods.get("job", job).get("status", {}).get("succeeded"):
        return None
    return pods.attempt("logs", f"job/{job}", "--tail=3").stdout or "nothing"


def node_of(pods: Kubectl, rank: int) -> str:
    """Where a worker runs."""
    return str(pods.get("pod", f"worker-{rank}")["spec"]["nodeName"])


def container_of(pods: Kubectl, rank: int) -> tuple[str, str]:
    """UID of a worker's pod and ID of its container: another one is another worker."""
    pod = pods.get("pod", f"worker-{rank}")
    (status,) = pod["status"]["containerStatuses"]
    return pod["metadata"]["uid"], status["containerID"]


def kill(pods: Kubectl, *names: str) -> None:
    """Delete pods without asking their processes to end."""
    pods.run("delete", "pod", *names, "--grace-period=0", "--force", "--wait=false")
