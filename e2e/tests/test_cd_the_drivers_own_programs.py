"""Controllers, plugins and daemons are replaced, stopped, asked and told to say less."""

import time

import members
import pytest
import ring
import workloads
from cluster import NAMESPACE, Cluster
from kubectl import Kubectl
from members import Domain, Json

FAIL_OVER_S = 20
STALE = {"surprise": True}


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
    what = ("set", "env", f"deployment/{members.CONTROLLER_NAME}")
    rack.driver.run(*what, "LOG_VERBOSITY_CD_DAEMON=0")
    try:
        rack.driver.run("rollout", "status", f"deployment/{members.CONTROLLER_NAME}", timeout_s=30)
        new = Domain(rack, members.apply(team, "new"))
        assert verbosity(template(new)) == "0"
        rack.driver.wait(
            lambda: None if verbosity(template(old)) == "0" else "the former verbosity",
            "the next daemons of the old domain to be told as well",
        )
        assert old.daemons() == running
        assert verbosity(rack.driver.get("pod", running["node-1"])["spec"]) == "4"
    finally:
        rack.driver.run(*what, "LOG_VERBOSITY_CD_DAEMON=4")
        rack.driver.run("rollout", "status", f"deployment/{members.CONTROLLER_NAME}", timeout_s=30)
    team.delete("pod", "w")
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


def test_a_plugin_that_is_asked_for_its_stacks_prints_them_and_goes_on(rack: Cluster) -> None:
    pod = rack.plugin("node-1")
    rack.driver.exec(pod, "sh", "-c", "kill -USR2 1")
    rack.driver.wait(
        lambda: None if "most recent call first" in rack.driver.logs(pod) else "nothing",
        "the stacks in the plugin's log",
    )
    (state,) = rack.driver.get("pod", pod)["status"]["containerStatuses"]
    assert (state["ready"], state["restartCount"]) == (True, 0)


@pytest.mark.parametrize("component", ["daemonset/nvdra-nvdra-cd-plugin", "controller"])
def test_a_program_says_its_settings_when_it_starts(rack: Cluster, component: str) -> None:
    what = component if "/" in component else f"deployment/{members.CONTROLLER_NAME}"
    first = rack.driver.run("logs", what).splitlines()[0]
    for words in ("Starting", "version", NAMESPACE):
        assert words in first


def test_a_claim_that_is_refused_is_refused_again_after_the_plugin_restarts(
    rack: Cluster, team: Kubectl
) -> None:
    uid = members.apply(team, "ring")
    team.apply(members.claim("mine", {"domainID": uid, **STALE}))
    pod = workloads.pod("w", claims=["mine"])
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-1"}
    team.apply(pod)
    assert "InvalidConfig: " in members.wait_refused(team, "w")
    rack.restart_plugin("node-1")
    team.run("annotate", "pod", "w", "tests/again=now")  # the kubelet tries again at once
    assert "surprise" in members.wait_refused(team, "w")
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
