# SPDX-License-Identifier: Apache-2.0
"""`make rack`: one ComputeDomain over all trays of a rack, and what can happen to it.

The nodes are trays of one NVL72 rack. One pod on each of them claims a channel of one domain.
"""

import sys

from nvdra_api import names
from nvdra_lab.environment import Environment
from nvdra_lab.providers.local import LabRequest
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

from e2e.demo import command, domain_chapter, environment_setup, next_steps
from e2e.demo.domain_chapter import RACK
from e2e.demo.screen import Screen

NAME, NAMESPACE = "rack", "default"
NODES = 18
FORMED_S = 150


def main() -> int:
    """Show the rack; return 1 if a step fails."""
    wishes = command.parser("e2e.demo.rack", "rack", NODES).parse_args()
    request = LabRequest(wishes.name, wishes.nodes, RACK, wishes.kube)
    return command.run(request, _run_chapters)


def _run_chapters(screen: Screen, here: Environment, wishes: LabRequest) -> None:
    cluster = environment_setup.start_cluster(screen, here, wishes)
    environment_setup.install_driver(screen, here, cluster)
    _form(screen, cluster)
    _show_next_steps(screen, cluster)


def _form(screen: Screen, cluster: Cluster) -> None:
    """Form one domain over all nodes, and show where the time went."""
    nodes, pods = cluster.nodes(), cluster.kubectl.in_namespace(NAMESPACE)
    screen.chapter(
        f"A ComputeDomain over {len(nodes)} nodes",
        "A pod on each node claims a channel. The driver starts an IMEX daemon on each of these "
        "nodes, and lets a pod start once the daemon of its node is ready.",
    )
    if pods.exists("computedomain", NAME):
        screen.note(f"the domain {NAME} is there already")
    else:
        compute_domains.create_domain(pods, NAME)
    template = compute_domains.template_name(NAME)
    with screen.step(f"{len(nodes)} pods: Running"):
        for node in nodes:
            pods.apply(compute_domains.channel_pod(node, template, node))
        pods.wait_running(*nodes, timeout_s=FORMED_S)
    with screen.step("the domain: Ready"):
        compute_domains.wait_ready(pods, NAME, len(nodes), FORMED_S)
    screen.commands([f"kubectl -n {NAMESPACE} get computedomains"])
    screen.quote(pods.run("get", "computedomains"))
    found = Domain(cluster, compute_domains.uid_of(pods, NAME))
    domain_chapter.show_critical_path(screen, domain_chapter.merged_trace(screen, cluster, found))
    _show_connections(screen, cluster, found)


def _show_connections(screen: Screen, cluster: Cluster, found: Domain) -> None:
    """Show what IMEX itself says of its peers."""
    daemon = next(iter(sorted(found.daemons().values())))
    argv = ["exec", daemon, "--", "nvidia-imex-ctl", "-c", "/imexd/imexd.cfg", "-N"]
    drivers: Kubectl = cluster.driver_namespace
    screen.heading("What nvidia-imex says of its peers, asked in one of the daemons")
    screen.commands([f"kubectl -n {drivers.namespace} {' '.join(argv)}"])
    screen.quote(drivers.run(*argv))


def _show_next_steps(screen: Screen, cluster: Cluster) -> None:
    flag = next_steps.name_flag(cluster.lab.name)
    first, second, *_, last = cluster.nodes()
    watch = f"kubectl -n {NAMESPACE} describe computedomain {NAME}"
    screen.chapter("Your turn", f"All of this took {screen.elapsed_s:.0f} s. The rack stays.")
    for about, commands in (
        ("Talk to it:", [f'PATH=$PWD/.venv/bin:$PATH; eval "$(lab env{flag})"', watch]),
        (
            "Power a tray off, see the domain count it out once Kubernetes has noticed, and back:",
            [f"lab power-off{flag} {last}", f"sleep 60; {watch}", f"lab power-on{flag} {last}"],
        ),
        (
            "Cut the link between two trays: both stay READY, and the domain says who is cut off:",
            [
                f"lab cut-link{flag} {first} {second}",
                f"sleep 60; {watch}",
                f"lab mend-link{flag} {first} {second}",
            ],
        ),
        (
            "Kill a daemon: its successor has its index and name, and no other daemon restarts:",
            [
                f"kubectl -n {cluster.driver_namespace.namespace} delete pod --force "
                f"$(kubectl -n {cluster.driver_namespace.namespace} get pods -o name "
                f"-l {names.DOMAIN_LABEL} "
                f"--field-selector=spec.nodeName={first})",
                watch,
            ],
        ),
        (
            "Mix two driver versions; IMEX blocks the other one until its own daemon is replaced:",
            [
                f"lab sim{flag} {last} imex set --claim-version 570.86.15",
                f"sleep 60; {watch}",
                f"lab sim{flag} {last} imex clear",
            ],
        ),
        ("Stop it; only what was built stays, in the cache:", [next_steps.stop(cluster.lab.name)]),
    ):
        next_steps.show_commands(screen, about, commands)


if __name__ == "__main__":
    sys.exit(main())
