"""Controllers, plugins and daemons are replaced, stopped, asked and told to say less."""

import json
import re
import time
from dataclasses import replace

import members
import pytest
import rights
import ring
import workloads
from cluster import GPUS, NAMESPACE, RELEASE, Cluster
from kubectl import Kubectl
from members import Domain, Json

FAIL_OVER_S = 20
CONTROLLER_S = 10
OF_LEVEL_2 = "Finished: "
"""How a line begins that daemons write from verbosity 2 on."""
REFUSED_S = 60
STALE = {"surprise": True}
CLIQUE = re.compile(r"[0-9a-f-]{36}\.[0-9]+")
DUMPS = ("/tmp/nvdra-stacks.dump", "/tmp/goroutine-stacks.dump")


def test_of_two_controllers_one_leads_and_the_other_follows_when_it_is_killed(
    rack: Cluster, team: Kubectl
) -> None:
    rack.driver.run("scale", "deployment", members.CONTROLLER_NAME, "--replicas=2")
    try:
        rack.driver.wait(lambda: unready(rack, 2), "two controllers", 30)
        first = members.leader(rack)
        assert first in members.controllers(rack)
        holder = rack.driver.get("lease", members.CONTROLLER_NAME)["spec"]["holderIdentity"]
        assert holder.startswith(f"{first}-")

        began = time.monotonic()
        ring.kill(rack.driver, first)
        rack.driver.wait(
            lambda: None if members.leader(rack) not in ("", first) else "none",
            "another leader",
            FAIL_OVER_S,
        )
        rack.driver.wait(
            lambda: None if members.controllers(rack).get(members.leader(rack)) else "not ready",
            "it to be ready",
            FAIL_OVER_S,
        )
        assert time.monotonic() - began < FAIL_OVER_S
        members.apply(team, "ring")  # somebody makes its template
        team.delete("computedomain", "ring")
    finally:
        rack.driver.run("scale", "deployment", members.CONTROLLER_NAME, "--replicas=1")
        rack.driver.wait(lambda: unready(rack, 1), "one controller", 30)


def unready(rack: Cluster, wanted: int) -> str | None:
    found = members.controllers(rack)
    is_so = len(found) == wanted and all(found.values()) and members.leader(rack)
    return None if is_so else str(found)


def test_daemons_made_from_now_on_say_as_much_as_the_deployment_says_now_and_others_stay(
    rack: Cluster, team: Kubectl
) -> None:
    old = Domain(rack, members.apply(team, "old"))
    team.apply(members.worker("w", members.channel_of("old"), "node-1"))
    team.wait_running("w")
    running = old.daemons()
    began = time.monotonic()
    members.set_controller(rack, "LOG_VERBOSITY_CD_DAEMON=0")
    assert time.monotonic() - began < CONTROLLER_S
    members.wait_leader(rack)  # until then the former one may still make daemons
    try:
        new = Domain(rack, members.apply(team, "new"))
        assert verbosity(template(new)) == "0"
        rack.driver.wait(
            lambda: None if verbosity(template(old)) == "0" else "the former verbosity",
            "the next daemons of the old domain to be told as well",
        )
        assert old.daemons() == running
        assert verbosity(rack.driver.get("pod", running["node-1"])["spec"]) == "4"
        team.apply(members.worker("quiet", members.channel_of("new"), "node-2"))
        team.wait_running("quiet")
        said = rack.driver.logs(new.daemons()["node-2"])
        assert "Starting" in said
        assert OF_LEVEL_2 not in said
        assert OF_LEVEL_2 in rack.driver.logs(running["node-1"])
    finally:
        members.set_controller(rack, "LOG_VERBOSITY_CD_DAEMON=4")
        members.wait_leader(rack)
    team.delete("pod", "w", "quiet")
    for domain, name in ((old, "old"), (new, "new")):
        team.delete("computedomain", name)
        domain.wait_gone()


def template(domain: Domain) -> Json:
    """What the pods of a domain's daemons are made from."""
    (daemons,) = domain.labelled("daemonsets")
    return dict(daemons["spec"]["template"]["spec"])


def verbosity(pod_spec: Json) -> str:
    """What a daemon is told."""
    (container,) = pod_spec["containers"]
    return str({each["name"]: each.get("value") for each in container["env"]}["LOG_VERBOSITY"])


def test_a_plugin_that_is_asked_for_its_stacks_leaves_them_in_a_file_and_goes_on(
    rack: Cluster,
) -> None:
    pod = rack.plugin("node-1")
    before = rack.driver.get("pod", pod)["status"]["containerStatuses"]
    rack.driver.exec(pod, "sh", "-c", f"rm -f {' '.join(DUMPS)}; kill -USR2 1")
    for path in DUMPS:
        rack.driver.wait(
            lambda path=path: (
                rack.driver.attempt("exec", pod, "--", "test", "-s", path).stderr or None
            ),
            f"the stacks in {path}",
        )
        text = rack.driver.exec(pod, "cat", path)
        assert "nvdra_cd_plugin/app.py" in text
        assert "in main\n" in text
        tasks = {line.split('"')[1] for line in text.splitlines() if line.startswith("Task ")}
        assert {"sweeping"} < tasks
    assert "most recent call first" in rack.driver.logs(pod)
    assert rack.driver.get("pod", pod)["status"]["containerStatuses"] == before
    assert all(status["ready"] for status in before)


def test_a_plugin_says_its_settings_when_it_starts_and_then_the_nodes_clique(
    rack: Cluster,
) -> None:
    by_gpus = replace(rack, component=GPUS)
    for node in rack.nodes():
        first, *others = said_by(rack, rack.plugin(node))
        assert first["message"] == "Starting"
        assert first["version"]
        assert (first["node-name"], first["v"]) == (node, 4)
        assert first["namespace"] == NAMESPACE
        assert first["feature-gates"]["IMEXDaemonsWithDNSNames"] is True
        identified = "The node's NVLink clique is identified"
        (clique,) = (each["clique"] for each in others if each["message"] == identified)
        assert CLIQUE.fullmatch(clique)
        accepted = "The driver's IMEX finds its peers by name"
        (driver,) = (each["driver"] for each in others if each["message"] == accepted)
        gpus = (each.attributes for each in by_gpus.devices() if each.node == node)
        assert {numbers(driver)} == {numbers(each["driverVersion"]) for each in gpus}


def test_the_controller_says_its_settings_when_it_starts(rack: Cluster) -> None:
    (pod,) = members.controllers(rack)
    first = said_by(rack, pod)[0]
    assert first["message"] == "Starting"
    assert first["version"]
    assert (first["namespace"], first["additional-namespaces"]) == (NAMESPACE, "")
    assert (first["max-nodes-per-imex-domain"], first["v"]) == (2, 4)
    assert first["feature-gates"]["MPSSupport"] is False
    assert first["feature-gates"]["ComputeDomainCliques"] is True


def numbers(version: str) -> tuple[int, ...]:
    """Of a version; as an attribute it has no noughts in front."""
    return tuple(map(int, version.split(".")))


def said_by(rack: Cluster, pod: str) -> list[Json]:
    """The lines of a program's log, without stacks that somebody asked for."""
    lines = rack.driver.logs(pod).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_a_claim_that_is_refused_is_refused_again_after_the_plugin_restarts(
    rack: Cluster, team: Kubectl
) -> None:
    uid = members.apply(team, "ring")
    team.apply(members.claim("mine", {"domainID": uid, **STALE}))
    pod = workloads.pod("w", claims=["mine"])
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-1"}
    team.apply(pod)
    assert "InvalidConfig: " in members.wait_refused(team, "w")
    rack.restart_plugin("node-1")  # what the new one counts, it did itself
    team.run("annotate", "pod", "w", "tests/again=now")  # the kubelet tries again at once
    rack.driver.wait(
        lambda: None if members.refused_prepares(rack, "node-1", "InvalidConfig") else "none",
        "the new plugin to refuse the claim",
        REFUSED_S,
    )
    assert "surprise" in members.wait_refused(team, "w")
    assert members.held(rack, "node-1") == []
    team.delete("pod", "w")
    team.delete("resourceclaim", "mine")
    team.delete("computedomain", "ring")
    members.wait_released(rack)


@pytest.mark.timeout(240, func_only=True)
def test_what_went_while_no_driver_was_there_is_given_back_when_it_is_back(
    rack: Cluster, team: Kubectl, rack_settings: list[str]
) -> None:
    domain = Domain(rack, members.apply(team, "ring"))
    team.apply(members.worker("w", members.channel_of("ring"), "node-2"))
    team.wait_running("w")
    rack.uninstall()
    ring.kill(team, "w")
    team.run("delete", "resourceclaims", "--all", "--wait=false")
    # The default, said in full, changes nothing.
    rack.install(*rack_settings, "--set=global.featureGates.ComputeDomainCliques=true")
    team.wait(lambda: ", ".join(domain.nodes()) or None, "the node to be let go", 100)
    members.wait_released(rack, 60)
    team.apply(members.worker("again", members.channel_of("ring"), "node-2"))
    team.wait_running("again")
    assert members.channels(team, "again") == {"channel0"}
    team.delete("pod", "again")
    team.delete("computedomain", "ring")
    domain.wait_gone()
    members.wait_released(rack)


@pytest.mark.timeout(240, func_only=True)
def test_a_workload_outlives_an_upgrade_to_domains_alone_and_the_way_back(
    rack: Cluster, team: Kubectl, rack_settings: list[str]
) -> None:
    former = json.loads(rack.helm("history", RELEASE, "-n", NAMESPACE, "-o", "json"))[-1]
    domain = Domain(rack, members.apply(team, "ring", nodes=1))
    start(team, "first")
    daemons, plugins = domain.daemons(), plugins_of(rack)
    only_domains = "--set=resources.gpus.enabled=false"
    rack.install(*rack_settings, only_domains, "--set-string=global.logVerbosity=5")
    assert not plugins & plugins_of(rack)
    check_no_gpus(rack)
    assert domain.daemons() == daemons
    assert members.channels(team, "first") == {"channel0"}
    end(team, "first")
    start(team, "second")
    assert members.channels(team, "second") == {"channel0"}

    daemons, plugins = domain.daemons(), plugins_of(rack)
    rack.helm("rollback", RELEASE, str(former["revision"]), "-n", NAMESPACE, "--wait")
    rack.wait_rolled_out()
    assert not plugins & plugins_of(rack)
    assert domain.daemons() == daemons
    end(team, "second")
    start(team, "third")
    assert members.channels(team, "third") == {"channel0"}
    end(team, "third")
    team.delete("computedomain", "ring")
    domain.wait_gone()
    members.wait_released(rack)


def plugins_of(rack: Cluster) -> set[str]:
    """The compute-domain plugins' pods."""
    return {rack.plugin(node) for node in rack.nodes()}


def check_no_gpus(rack: Cluster) -> None:
    """Of gpu.nvidia.com nothing is installed."""
    objects = rights.rendered(rack.helm("get", "manifest", RELEASE, "-n", NAMESPACE))
    assert [each["metadata"]["name"] for each in objects if GPUS.name in str(each)] == []
    assert not rack.kubectl.exists("deviceclass", GPUS.driver)
    rack.driver.wait(
        lambda: rack.driver.run("get", "pods", "-l", GPUS.label, "-o", "name") or None,
        "the GPU plugins to be gone",
    )


def start(team: Kubectl, name: str) -> None:
    """A workload of the domain `ring` on one node."""
    team.apply(members.worker(name, members.channel_of("ring"), "node-1"))
    team.wait_running(name)
    members.wait_ready(team, "ring", 1)


def end(team: Kubectl, name: str) -> None:
    """Its end, and the node's leaving."""
    team.delete("pod", name)
    team.wait(
        lambda: str(members.places(team, "ring")) if members.places(team, "ring") else None,
        "the node to leave the domain",
    )
