# SPDX-License-Identifier: Apache-2.0
"""Controllers, plugins and daemons are replaced, stopped, queried and reconfigured."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest
from nvdra_testing.cluster import compute_domains, multi_node_job, rbac, workloads
from nvdra_testing.cluster.compute_domains import Domain, Json
from nvdra_testing.cluster.installation import GPU_PLUGIN, NAMESPACE, RELEASE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl

FAIL_OVER_S = 40
"""Another controller leads 15 to 20 s after the first one was killed, if the machine is idle."""
OF_LEVEL_2 = "Finished: "
"""The beginning of a log line that daemons write at verbosity 2 and above."""
LIMIT = "MAX_NODES_PER_IMEX_DOMAIN"
REFUSED_S = 60
STALE = {"surprise": True}
CLIQUE = re.compile(r"[0-9a-f-]{36}\.[0-9]+")
DUMPS = ("/tmp/nvdra-stacks.dump", "/tmp/goroutine-stacks.dump")


def test_of_two_controllers_one_leads_and_the_other_follows_when_it_is_killed(
    rack: Cluster, team: Kubectl
) -> None:
    rack.driver_namespace.run(
        "scale", "deployment", compute_domains.CONTROLLER_NAME, "--replicas=2"
    )
    try:
        rack.driver_namespace.wait(lambda: unready(rack, 2), "two controllers")
        first = compute_domains.leader(rack)
        assert first in compute_domains.controller_pods(rack)
        holder = rack.driver_namespace.get("lease", compute_domains.CONTROLLER_NAME)["spec"][
            "holderIdentity"
        ]
        assert holder.startswith(f"{first}-")

        multi_node_job.force_delete(rack.driver_namespace, first)
        rack.driver_namespace.wait(
            lambda: None if compute_domains.leader(rack) not in ("", first) else "none",
            "another leader",
            FAIL_OVER_S,
        )
        rack.driver_namespace.wait(
            lambda: (
                None
                if compute_domains.controller_pods(rack).get(compute_domains.leader(rack))
                else "not ready"
            ),
            "it to be ready",
            FAIL_OVER_S,
        )
        compute_domains.create_domain(team, "ring")  # a controller creates its template
        team.delete("computedomain", "ring")
    finally:
        rack.driver_namespace.run(
            "scale", "deployment", compute_domains.CONTROLLER_NAME, "--replicas=1"
        )
        rack.driver_namespace.wait(lambda: unready(rack, 1), "one controller")


def unready(rack: Cluster, wanted: int) -> str | None:
    found = compute_domains.controller_pods(rack)
    is_so = len(found) == wanted and all(found.values()) and compute_domains.leader(rack)
    return None if is_so else str(found)


def test_daemons_made_from_now_on_say_as_much_as_the_deployment_says_now_and_others_stay(
    rack: Cluster, team: Kubectl
) -> None:
    old = Domain(rack, compute_domains.create_domain(team, "old"))
    team.apply(compute_domains.channel_pod("w", compute_domains.template_name("old"), "node-1"))
    team.wait_running("w")
    running = old.daemons()
    compute_domains.set_controller_env(rack, "LOG_VERBOSITY_CD_DAEMON=0")
    compute_domains.wait_leader(rack)  # until then the old leader may still create daemons
    try:
        new = Domain(rack, compute_domains.create_domain(team, "new"))
        assert verbosity(template(new)) == "0"
        rack.driver_namespace.wait(
            lambda: None if verbosity(template(old)) == "0" else "the former verbosity",
            "the next daemons of the old domain to be told as well",
        )
        assert old.daemons() == running
        assert verbosity(rack.driver_namespace.get("pod", running["node-1"])["spec"]) == "4"
        team.apply(
            compute_domains.channel_pod("quiet", compute_domains.template_name("new"), "node-2")
        )
        team.wait_running("quiet")
        said = rack.driver_namespace.logs(new.daemons()["node-2"])
        assert "Starting" in said
        assert OF_LEVEL_2 not in said
        assert OF_LEVEL_2 in rack.driver_namespace.logs(running["node-1"])
    finally:
        compute_domains.set_controller_env(rack, "LOG_VERBOSITY_CD_DAEMON=4")
        compute_domains.wait_leader(rack)
    team.delete("pod", "w", "quiet")
    for domain, name in ((old, "old"), (new, "new")):
        team.delete("computedomain", name)
        domain.wait_gone()


def test_a_limit_changed_under_a_live_domain_reaches_new_domains_only(
    rack: Cluster, team: Kubectl
) -> None:
    old = Domain(rack, compute_domains.create_domain(team, "old"))
    team.apply(compute_domains.channel_pod("w", compute_domains.template_name("old"), "node-1"))
    team.wait_running("w")
    before, first = variable(template(old), LIMIT), old.daemons()["node-1"]
    compute_domains.set_controller_env(rack, f"{LIMIT}=7")
    compute_domains.wait_leader(rack)  # until then the old leader may still create daemons
    try:
        new = Domain(rack, compute_domains.create_domain(team, "new"))
        assert variable(template(new), LIMIT) == "7"
        rack.driver_namespace.delete("pod", first)
        rack.driver_namespace.wait(
            lambda: None if old.daemons().get("node-1") not in (None, first) else "the first",
            "another daemon of the old domain",
        )
        compute_domains.wait_ready(team, "old", 1)
        replaced = rack.driver_namespace.get("pod", old.daemons()["node-1"])["spec"]
        assert variable(template(old), LIMIT) == variable(replaced, LIMIT) == before
    finally:
        compute_domains.set_controller_env(rack, f"{LIMIT}={before}")
        compute_domains.wait_leader(rack)
    team.delete("pod", "w")
    for domain, name in ((old, "old"), (new, "new")):
        team.delete("computedomain", name)
        domain.wait_gone()


def template(domain: Domain) -> Json:
    """The pod template of a domain's daemons."""
    (daemons,) = domain.objects("daemonsets")
    return dict(daemons["spec"]["template"]["spec"])


def verbosity(pod_spec: Json) -> str:
    """The verbosity of a daemon."""
    return variable(pod_spec, "LOG_VERBOSITY")


def variable(pod_spec: Json, name: str) -> str:
    """The value of an environment variable of a daemon."""
    (container,) = pod_spec["containers"]
    return str({each["name"]: each.get("value") for each in container["env"]}[name])


def test_a_plugin_that_is_asked_for_its_stacks_leaves_them_in_a_file_and_goes_on(
    rack: Cluster,
) -> None:
    pod = rack.plugin_pod("node-1")
    before = rack.driver_namespace.get("pod", pod)["status"]["containerStatuses"]
    remove = f"import os; [os.remove(each) for each in {DUMPS} if os.path.exists(each)]"
    rack.driver_namespace.exec(pod, "python3", "-c", remove)
    rack.driver_namespace.exec(pod, "kill", "-s", "SIGUSR2", "1")
    for path in DUMPS:
        rack.driver_namespace.wait(partial(not_written, rack, pod, path), f"the stacks in {path}")
        text = rack.driver_namespace.exec(pod, "cat", path)
        assert "nvdra_cd_plugin/app.py" in text
        assert "in main\n" in text
        tasks = {line.split('"')[1] for line in text.splitlines() if line.startswith("Task ")}
        assert {"cleanup"} < tasks
    rack.driver_namespace.wait(
        lambda: None if "most recent call first" in rack.driver_namespace.logs(pod) else "none",
        "the stacks of the threads in the log",
    )
    assert rack.driver_namespace.get("pod", pod)["status"]["containerStatuses"] == before
    assert all(status["ready"] for status in before)


def test_a_plugin_says_its_settings_when_it_starts_and_then_the_nodes_clique(
    rack: Cluster,
) -> None:
    by_gpus = replace(rack, component=GPU_PLUGIN)
    for node in rack.nodes():
        first, *others = said_by(rack, rack.plugin_pod(node))
        assert first["message"] == "Starting"
        assert first["version"]
        assert (first["node-name"], first["v"]) == (node, 4)
        assert first["namespace"] == NAMESPACE
        assert first["feature-gates"]["IMEXDaemonsWithDNSNames"] is True
        identified = "The node's NVLink clique is known"
        (clique,) = (each["clique"] for each in others if each["message"] == identified)
        assert CLIQUE.fullmatch(clique)
        accepted = "The driver's IMEX finds its peers by name"
        (driver,) = (each["driver"] for each in others if each["message"] == accepted)
        gpus = (each.attributes for each in by_gpus.devices() if each.node == node)
        assert {numbers(driver)} == {numbers(each["driverVersion"]) for each in gpus}


def test_the_controller_says_its_settings_when_it_starts(rack: Cluster) -> None:
    (pod,) = compute_domains.controller_pods(rack)
    first = said_by(rack, pod)[0]
    assert first["message"] == "Starting"
    assert first["version"]
    assert (first["namespace"], first["additional-namespaces"]) == (NAMESPACE, "")
    assert (first["max-nodes-per-imex-domain"], first["v"]) == (2, 4)
    assert first["feature-gates"]["MPSSupport"] is False
    assert first["feature-gates"]["ComputeDomainCliques"] is True


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version; the attribute has no leading zeros."""
    return tuple(map(int, version.split(".")))


def said_by(rack: Cluster, pod: str) -> list[Json]:
    """The log records of a program, without requested stack dumps."""
    lines = rack.driver_namespace.logs(pod).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_a_claim_that_is_refused_is_refused_again_after_the_plugin_restarts(
    rack: Cluster, team: Kubectl
) -> None:
    uid = compute_domains.create_domain(team, "ring")
    team.apply(compute_domains.channel_claim("mine", {"domainID": uid, **STALE}))
    pod = workloads.pod("w", claims=["mine"])
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-1"}
    team.apply(pod)
    assert "InvalidConfig: " in compute_domains.wait_prepare_error(team, "w")
    rack.restart_plugin("node-1")  # the new plugin counts only its own calls
    team.run("annotate", "pod", "w", "tests/again=now")  # makes the kubelet retry at once
    rack.driver_namespace.wait(
        lambda: (
            None
            if compute_domains.failed_prepare_count(rack, "node-1", "InvalidConfig")
            else "none"
        ),
        "the new plugin to refuse the claim",
        REFUSED_S,
    )
    assert "surprise" in compute_domains.wait_prepare_error(team, "w")
    assert compute_domains.claim_specs(rack, "node-1") == []
    team.delete("pod", "w")
    team.delete("resourceclaim", "mine")
    team.delete("computedomain", "ring")
    compute_domains.wait_released(rack)


@pytest.mark.timeout(400, func_only=True)
def test_what_went_while_no_driver_was_there_is_given_back_when_it_is_back(
    rack: Cluster, team: Kubectl, rack_settings: list[str]
) -> None:
    domain = Domain(rack, compute_domains.create_domain(team, "ring"))
    team.apply(compute_domains.channel_pod("w", compute_domains.template_name("ring"), "node-2"))
    team.wait_running("w")
    rack.uninstall()
    multi_node_job.force_delete(team, "w")
    team.run("delete", "resourceclaims", "--all", "--wait=false")
    # The default in its explicit form changes nothing.
    rack.install(*rack_settings, "--set=global.featureGates.ComputeDomainCliques=true")
    team.wait(lambda: ", ".join(domain.labelled_nodes()) or None, "the node to be let go", 100)
    compute_domains.wait_released(rack)
    team.apply(
        compute_domains.channel_pod("again", compute_domains.template_name("ring"), "node-2")
    )
    team.wait_running("again")
    assert compute_domains.channels(team, "again") == {"channel0"}
    team.delete("pod", "again")
    team.delete("computedomain", "ring")
    domain.wait_gone()
    compute_domains.wait_released(rack)


@pytest.mark.timeout(400, func_only=True)
def test_a_workload_outlives_an_upgrade_to_domains_alone_and_the_way_back(
    rack: Cluster, team: Kubectl, rack_settings: list[str]
) -> None:
    former = json.loads(rack.helm("history", RELEASE, "-n", NAMESPACE, "-o", "json"))[-1]
    domain = Domain(rack, compute_domains.create_domain(team, "ring", nodes=1))
    start(team, "first")
    daemons, plugins = domain.daemons(), plugins_of(rack)
    only_domains = "--set=resources.gpus.enabled=false"
    rack.install(*rack_settings, only_domains, "--set-string=global.logVerbosity=5")
    assert not plugins & plugins_of(rack)
    check_no_gpus(rack)
    assert domain.daemons() == daemons
    assert compute_domains.channels(team, "first") == {"channel0"}
    end(team, "first")
    start(team, "second")
    assert compute_domains.channels(team, "second") == {"channel0"}

    daemons, plugins = domain.daemons(), plugins_of(rack)
    rack.helm("rollback", RELEASE, str(former["revision"]), "-n", NAMESPACE, "--wait")
    assert not plugins & plugins_of(rack)
    assert domain.daemons() == daemons
    end(team, "second")
    start(team, "third")
    assert compute_domains.channels(team, "third") == {"channel0"}
    end(team, "third")
    team.delete("computedomain", "ring")
    domain.wait_gone()
    compute_domains.wait_released(rack)


def not_written(rack: Cluster, pod: str, path: str) -> str | None:
    """What is wrong with a file in a pod that should have stacks; None if it has the last ones."""
    read = rack.driver_namespace.run_unchecked("exec", pod, "--", "cat", path)
    return None if 'Task "cleanup"' in read.stdout else read.stderr or "not whole"


def plugins_of(rack: Cluster) -> set[str]:
    """The pods of the ComputeDomain plugin."""
    return {rack.plugin_pod(node) for node in rack.nodes()}


def check_no_gpus(rack: Cluster) -> None:
    """Check that nothing of gpu.nvidia.com is installed."""
    objects = rbac.parse_manifests(rack.helm("get", "manifest", RELEASE, "-n", NAMESPACE))
    assert [each["metadata"]["name"] for each in objects if GPU_PLUGIN.name in str(each)] == []
    assert not rack.kubectl.exists("deviceclass", GPU_PLUGIN.driver)
    rack.driver_namespace.wait(
        lambda: (
            rack.driver_namespace.run("get", "pods", "-l", GPU_PLUGIN.label, "-o", "name") or None
        ),
        "the GPU plugins to be gone",
    )


def start(team: Kubectl, name: str) -> None:
    """Start a workload of the domain `ring` on one node."""
    team.apply(compute_domains.channel_pod(name, compute_domains.template_name("ring"), "node-1"))
    team.wait_running(name)
    compute_domains.wait_ready(team, "ring", 1)


def end(team: Kubectl, name: str) -> None:
    """Delete the workload, and wait until the node has left the domain."""
    team.delete("pod", name)
    team.wait(
        lambda: (
            str(compute_domains.node_indexes(team, "ring"))
            if compute_domains.node_indexes(team, "ring")
            else None
        ),
        "the node to leave the domain",
    )
