# SPDX-License-Identifier: Apache-2.0
"""Creates and deletes domains and their pods at random, while what serves them is restarted."""

import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from nvdra_testing import background
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.api_client import ApiClient, ApiError
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.domain_objects import API
from nvdra_testing.random_domains.timeline import Away

API_SERVER = "kube-apiserver"
NOT_FOUND, CONFLICT = 404, 409

_Restart = Callable[[Cluster], None]


@dataclass(frozen=True)
class Plan:
    """What happens, drawn by a seed.

    Attributes:
        domains: How many domains are made.
        seconds: The time in which they are made.
        seed: Draws when each is made and deleted, on which nodes it is, and what is restarted.
        life_s: How long a domain stays. The shortest one is deleted while it forms.
        calm_s: The time between two restarts.
        most_nodes: How many nodes a domain has at most. Where many nodes share few cores, more
            daemons would start at once than the machine runs in time, and a late status would say
            nothing of who wrote it.
    """

    domains: int
    seconds: float
    seed: int
    life_s: tuple[float, float] = (15.0, 70.0)
    calm_s: tuple[float, float] = (15.0, 35.0)
    most_nodes: int = 4


@dataclass
class DomainsRun:
    """Domains in one namespace, each in a thread of its own.

    Attributes:
        away: When the API server or the controller was restarted, until it worked again.
        restarts: What was restarted, in order.
    """

    cluster: Cluster
    client: ApiClient
    namespace: str
    plan: Plan
    away: list[Away] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Run the plan, and return when all domains have been deleted."""
        draw = random.Random(f"{self.plan.seed}/domains")
        nodes = self.cluster.nodes()
        with (
            background.running(self._restart),
            ThreadPoolExecutor(self.plan.domains) as threads,
        ):
            lives = [
                threads.submit(
                    self._live,
                    f"domain-{number}",
                    draw.uniform(0, self.plan.seconds),
                    draw.uniform(*self.plan.life_s),
                    draw.sample(nodes, draw.randint(1, min(len(nodes), self.plan.most_nodes))),
                    draw.choice((True, False)),
                )
                for number in range(self.plan.domains)
            ]
        for life in lives:
            life.result()

    def _live(
        self, name: str, begins_s: float, life_s: float, nodes: Sequence[str], pods_first: bool
    ) -> None:
        """One domain, from its creation to its deletion."""
        time.sleep(begins_s)
        template = compute_domains.template_name(name)
        manifest = domain_objects.domain(name, template, numNodes=len(nodes))
        self._create(f"{API}/namespaces/{self.namespace}/computedomains", manifest)
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        for node in nodes:
            self._create(pods, compute_domains.channel_pod(f"{name}-{node}", template, node))
        time.sleep(life_s)
        domain = f"{API}/namespaces/{self.namespace}/computedomains/{name}"
        of_pods = [f"{pods}/{name}-{node}" for node in nodes]
        for path in (*of_pods, domain) if pods_first else (domain, *of_pods):
            self._delete(path)

    def _create(self, path: str, manifest: domain_objects.Json) -> None:
        try:
            self.client.request("POST", path, manifest)
        except ApiError as error:
            if error.status != CONFLICT:  # it was created by a request that was not answered
                raise

    def _delete(self, path: str) -> None:
        try:
            self.client.request("DELETE", path)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    def _restart(self, stop: threading.Event) -> None:
        draw = random.Random(f"{self.plan.seed}/restarts")
        while not stop.wait(draw.uniform(*self.plan.calm_s)):
            what = draw.choice((*_RESTARTS,))
            began = time.monotonic()
            _RESTARTS[what](self.cluster)
            self.away.append(Away(began, time.monotonic()))
            self.restarts.append(what)


def _restart_api_server(cluster: Cluster) -> None:
    cluster.lab.run_checked("restart", API_SERVER)
    ApiClient.from_kubeconfig(cluster.kubectl.kubeconfig).request("GET", "/api/v1/namespaces")


def _replace_controller(cluster: Cluster) -> None:
    _delete_controller(cluster)


def _kill_controller(cluster: Cluster) -> None:
    _delete_controller(cluster, "--grace-period=0", "--force")


def _delete_controller(cluster: Cluster, *how: str) -> None:
    pods = compute_domains.controller_pods(cluster)
    cluster.driver_namespace.run("delete", "pod", *pods, "--wait=false", *how)
    cluster.driver_namespace.wait(
        lambda: None if _leads_anew(cluster, pods) else "nobody", "another controller to lead"
    )


def _leads_anew(cluster: Cluster, former: Collection[str]) -> bool:
    return compute_domains.leader(cluster) not in ("", *former)


_RESTARTS: dict[str, _Restart] = {
    API_SERVER: _restart_api_server,
    "controller replaced": _replace_controller,
    "controller killed": _kill_controller,
}
