"""Domain → DaemonSet and both claim templates; what somebody changed by hand is put back."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import cd_objects
import pytest
import yaml
from cd_objects import MAKING, UID
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.types.gates import Gates
from nvdra_cd_controller import children

GOLDEN = Path(__file__).parent / "golden" / "children.yaml"


def made() -> list[JsonObject]:
    return [
        children.workload_template(cd_objects.domain(), MAKING),
        children.daemon_template(UID, "nvdra"),
        children.daemonset(UID, "nvdra", MAKING),
    ]


def stored(wanted: JsonObject) -> JsonObject:
    """As the API server returns it: with its own fields and defaults."""
    obj: JsonObject = copy.deepcopy(children.created(wanted))
    obj["metadata"] |= {"uid": "u", "resourceVersion": "5", "generation": 1}
    if obj["kind"] == "DaemonSet":
        obj["status"] = {"numberReady": 0}
        spec = pod(obj)
        spec |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
        spec["containers"][0] |= {"imagePullPolicy": "IfNotPresent"}
        for variable in spec["containers"][0]["env"]:
            if "valueFrom" in variable:
                variable["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
        obj["spec"]["updateStrategy"] = {"type": "OnDelete"}
    else:
        request = obj["spec"]["spec"]["devices"]["requests"][0]
        request["exactly"] |= {"allocationMode": "ExactCount", "count": 1}
    return obj


def pod(daemonset: JsonObject) -> Any:
    return daemonset["spec"]["template"]["spec"]


def test_the_children_are_those_that_the_reference_driver_makes() -> None:
    assert [children.created(each) for each in made()] == list(
        yaml.safe_load_all(GOLDEN.read_text())
    )


def test_the_workload_gets_every_channel_where_the_domain_says_so() -> None:
    channel = {"resourceClaimTemplate": {"name": "ring-channel"}, "allocationMode": "All"}
    domain = cd_objects.domain(spec={"channel": channel})

    def mode(host_managed: bool) -> str:
        making = replace(MAKING, is_host_managed=host_managed)
        config = children.workload_template(domain, making)["spec"]["spec"]["devices"]["config"]
        return str(config[0]["opaque"]["parameters"]["allocationMode"])

    assert mode(host_managed=False) == "All"
    assert mode(host_managed=True) == "Single"


def test_a_domain_that_has_no_spec_has_no_template() -> None:
    with pytest.raises(ValueError, match="channel is missing"):
        children.workload_template(cd_objects.domain(spec={}), MAKING)


def test_gates_secrets_and_the_collector_reach_the_daemons() -> None:
    making = replace(
        MAKING,
        gates=Gates.parse("ComputeDomainCliques=false"),
        pull_secrets=("one", "two"),
        variables={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"},
    )
    spec = pod(children.daemonset(UID, "nvdra", making))
    environment = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}

    assert "ComputeDomainCliques=false," in str(environment["FEATURE_GATES"])
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]


def test_priority_pull_policy_and_resources_reach_the_daemons() -> None:
    limits = {"limits": {"memory": "200Mi"}}
    making = replace(
        MAKING, pull_policy="Always", priority_class="system-node-critical", resources=limits
    )
    spec = pod(children.daemonset(UID, "nvdra", making))

    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["containers"][0]["imagePullPolicy"] == "Always"
    claims = {"claims": [{"name": "compute-domain-daemon"}]}
    assert spec["containers"][0]["resources"] == {**claims, **limits}


def test_a_daemon_that_is_to_be_observed_has_an_endpoint_and_its_port() -> None:
    wanted = children.daemonset(UID, "nvdra", replace(MAKING, http_endpoint=":8080"))
    container = pod(wanted)["containers"][0]

    assert {"name": "HTTP_ENDPOINT", "value": ":8080"} in container["env"]
    assert container["ports"] == [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]
    assert children.healed(stored(wanted), wanted) is None


def test_what_nobody_asked_for_stays_as_somebody_set_it() -> None:
    wanted = children.daemonset(UID, "nvdra", MAKING)
    changed = stored(wanted)
    pod(changed)["priorityClassName"] = "theirs"
    pod(changed)["containers"][0]["resources"]["limits"] = {"memory": "1Gi"}

    assert children.healed(changed, wanted) is None


@pytest.mark.parametrize("number", range(3))
def test_what_is_stored_as_we_want_it_is_left_alone(number: int) -> None:
    wanted = made()[number]
    assert children.healed(stored(wanted), wanted) is None


@pytest.mark.parametrize("number", range(3))
def test_a_label_and_a_finalizer_that_were_taken_away_come_back(number: int) -> None:
    wanted = made()[number]
    changed = stored(wanted)
    changed["metadata"]["finalizers"] = ["example.com/theirs"]
    changed["metadata"]["labels"] = {"theirs": "x"}

    healed = children.healed(changed, wanted)
    assert healed is not None
    assert healed["metadata"]["finalizers"] == [
        "example.com/theirs",
        "resource.nvidia.com/computeDomain",
    ]
    assert healed["metadata"]["labels"] == {"theirs": "x", **wanted["metadata"]["labels"]}
    assert healed["metadata"]["resourceVersion"] == "5"


def test_a_daemonset_that_was_changed_by_hand_is_as_it_was() -> None:
    wanted = made()[2]
    changed = stored(wanted)
    pod(changed)["nodeSelector"]["zone"] = "a"
    pod(changed)["tolerations"].pop()
    pod(changed)["containers"][0]["image"] = "theirs"
    pod(changed)["containers"][0]["env"].append({"name": "X", "value": "y"})

    healed = children.healed(changed, wanted)
    assert healed is not None
    again = stored(wanted)
    pod(again)["containers"][0]["env"] = wanted["spec"]["template"]["spec"]["containers"][0]["env"]
    pod(again)["tolerations"] = wanted["spec"]["template"]["spec"]["tolerations"]
    assert healed == again


def test_what_we_do_not_write_is_left_to_whoever_set_it() -> None:
    wanted = made()[2]
    changed = stored(wanted)
    pod(changed)["priorityClassName"] = "system-node-critical"
    pod(changed)["containers"][0]["resources"]["limits"] = {"memory": "200Mi"}

    assert children.healed(changed, wanted) is None


def test_the_probes_of_a_daemonset_of_the_reference_driver_are_taken_out() -> None:
    wanted = made()[2]
    theirs = stored(wanted)
    probe = {"exec": {"command": ["compute-domain-daemon", "check"]}}
    pod(theirs)["containers"][0]["readinessProbe"] = probe
    theirs["spec"]["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}}

    assert children.healed(theirs, wanted) == stored(wanted)
