# SPDX-License-Identifier: Apache-2.0
"""The DaemonSet and both claim templates of a domain, and how changes of them are corrected."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvdra_api.gates import FeatureGates
from nvdra_api.meta import JsonObject
from nvdra_cd_controller import children
from nvdra_testing.control_plane import domain_values
from nvdra_testing.control_plane.domain_values import CHILD_CONFIG, UID

GOLDEN = Path(__file__).parent / "golden" / "children.yaml"


def made() -> list[JsonObject]:
    return [
        children.workload_claim_template(domain_values.domain(), CHILD_CONFIG),
        children.daemon_claim_template(domain_values.domain(), "nvdra"),
        children.daemonset(UID, "nvdra", CHILD_CONFIG),
    ]


def stored(wanted: JsonObject) -> JsonObject:
    """The object as the API server returns it, with its own fields and defaults."""
    obj: JsonObject = copy.deepcopy(children.creation_body(wanted))
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


def test_the_children_are_those_of_the_reference_driver() -> None:
    assert [children.creation_body(each) for each in made()] == list(
        yaml.safe_load_all(GOLDEN.read_text())
    )


def test_the_allocation_mode_is_the_domains() -> None:
    channel = {"resourceClaimTemplate": {"name": "ring-channel"}, "allocationMode": "All"}
    domain = domain_values.domain(spec={"channel": channel})

    def mode(host_managed: bool) -> str:
        child_config = replace(CHILD_CONFIG, is_host_managed=host_managed)
        template = children.workload_claim_template(domain, child_config)
        config = template["spec"]["spec"]["devices"]["config"]
        return str(config[0]["opaque"]["parameters"]["allocationMode"])

    assert mode(host_managed=False) == "All"
    assert mode(host_managed=True) == "Single"


def test_a_domain_without_a_spec_is_an_error() -> None:
    with pytest.raises(ValueError, match="channel is missing"):
        children.workload_claim_template(domain_values.domain(spec={}), CHILD_CONFIG)


def test_gates_secrets_and_the_collector_reach_the_daemons() -> None:
    config = replace(
        CHILD_CONFIG,
        gates=FeatureGates.parse("ComputeDomainCliques=false"),
        pull_secrets=("one", "two"),
        variables={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"},
    )
    spec = pod(children.daemonset(UID, "nvdra", config))
    environment = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}

    assert "ComputeDomainCliques=false," in str(environment["FEATURE_GATES"])
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]


def test_daemons_log_in_the_same_format_as_the_controller() -> None:
    def environment(logging_format: str) -> list[JsonObject]:
        config = replace(CHILD_CONFIG, logging_format=logging_format)
        spec = pod(children.daemonset(UID, "nvdra", config))
        return list(spec["containers"][0]["env"])

    assert {"name": "LOGGING_FORMAT", "value": "json"} in environment("json")
    assert environment("text") == [
        each for each in environment("json") if each["name"] != "LOGGING_FORMAT"
    ]


def test_priority_pull_policy_and_resources_reach_the_daemons() -> None:
    limits = {"limits": {"memory": "200Mi"}}
    config = replace(
        CHILD_CONFIG, pull_policy="Always", priority_class="system-node-critical", resources=limits
    )
    spec = pod(children.daemonset(UID, "nvdra", config))

    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["containers"][0]["imagePullPolicy"] == "Always"
    claims = {"claims": [{"name": "compute-domain-daemon"}]}
    assert spec["containers"][0]["resources"] == {**claims, **limits}


def test_a_daemon_that_serves_its_readiness_is_asked_for_it() -> None:
    wanted = children.daemonset(UID, "nvdra", replace(CHILD_CONFIG, http_endpoint=":8080"))
    container = pod(children.creation_body(wanted))["containers"][0]
    assert container["readinessProbe"] == {
        "httpGet": {"path": "/readyz", "port": "http"},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "failureThreshold": 2,
    }
    assert not {"livenessProbe", "startupProbe"} & container.keys()


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:8080", "[::1]:8080"])
def test_a_daemon_that_nobody_reaches_has_no_probe(endpoint: str) -> None:
    wanted = children.daemonset(UID, "nvdra", replace(CHILD_CONFIG, http_endpoint=endpoint))
    assert "readinessProbe" not in pod(children.creation_body(wanted))["containers"][0]


def test_the_reference_drivers_probe_becomes_that_of_the_daemon() -> None:
    wanted = children.daemonset(UID, "nvdra", replace(CHILD_CONFIG, http_endpoint=":8080"))
    theirs = stored(wanted)
    probe = {"exec": {"command": ["compute-domain-daemon", "check"]}, "periodSeconds": 1}
    pod(theirs)["containers"][0] |= {"readinessProbe": probe, "livenessProbe": probe}
    assert children.corrected(theirs, wanted) == stored(wanted)


def test_an_http_endpoint_is_passed_on_with_its_port() -> None:
    wanted = children.daemonset(UID, "nvdra", replace(CHILD_CONFIG, http_endpoint=":8080"))
    container = pod(wanted)["containers"][0]

    assert {"name": "HTTP_ENDPOINT", "value": ":8080"} in container["env"]
    assert container["ports"] == [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]
    assert children.corrected(stored(wanted), wanted) is None


def test_priority_class_and_limits_that_somebody_set_are_kept() -> None:
    wanted = children.daemonset(UID, "nvdra", CHILD_CONFIG)
    changed = stored(wanted)
    pod(changed)["priorityClassName"] = "theirs"
    pod(changed)["containers"][0]["resources"]["limits"] = {"memory": "1Gi"}

    assert children.corrected(changed, wanted) is None


@pytest.mark.parametrize("number", range(3))
def test_a_child_as_desired_is_not_written(number: int) -> None:
    wanted = made()[number]
    assert children.corrected(stored(wanted), wanted) is None


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("metadata", [None, {}, {"annotations": {"theirs": "x"}}])
def test_a_template_keeps_what_it_gives_its_claims_as_metadata(
    number: int, metadata: JsonObject | None
) -> None:
    wanted = made()[number]
    earlier = stored(wanted)
    del earlier["spec"]["metadata"]
    if metadata is not None:
        earlier["spec"]["metadata"] = metadata
    assert children.corrected(earlier, wanted) is None
    assert not children.differs_in_spec(earlier, wanted)
    del earlier["metadata"]["labels"]
    assert children.belongs_to_domain(earlier, wanted)


@pytest.mark.parametrize("number", range(3))
def test_a_removed_label_and_finalizer_are_restored(number: int) -> None:
    wanted = made()[number]
    changed = stored(wanted)
    changed["metadata"]["finalizers"] = ["example.com/theirs"]
    changed["metadata"]["labels"] = {"theirs": "x"}

    corrected = children.corrected(changed, wanted)
    assert corrected is not None
    assert corrected["metadata"]["finalizers"] == [
        "example.com/theirs",
        "resource.nvidia.com/computeDomain",
    ]
    assert corrected["metadata"]["labels"] == {"theirs": "x", **wanted["metadata"]["labels"]}
    assert corrected["metadata"]["resourceVersion"] == "5"


def test_a_changed_daemonset_is_corrected() -> None:
    wanted = made()[2]
    changed = stored(wanted)
    pod(changed)["nodeSelector"]["zone"] = "a"
    pod(changed)["tolerations"].pop()
    pod(changed)["containers"][0]["image"] = "theirs"
    pod(changed)["containers"][0]["env"].append({"name": "X", "value": "y"})

    corrected = children.corrected(changed, wanted)
    assert corrected is not None
    again = stored(wanted)
    pod(again)["containers"][0]["env"] = wanted["spec"]["template"]["spec"]["containers"][0]["env"]
    pod(again)["tolerations"] = wanted["spec"]["template"]["spec"]["tolerations"]
    assert corrected == again


def test_fields_that_we_do_not_write_are_kept() -> None:
    wanted = made()[2]
    changed = stored(wanted)
    pod(changed)["priorityClassName"] = "system-node-critical"
    pod(changed)["containers"][0]["resources"]["limits"] = {"memory": "200Mi"}

    assert children.corrected(changed, wanted) is None


def test_the_probes_of_the_reference_drivers_daemonset_are_removed() -> None:
    wanted = made()[2]
    theirs = stored(wanted)
    probe = {"exec": {"command": ["compute-domain-daemon", "check"]}}
    pod(theirs)["containers"][0]["readinessProbe"] = probe
    theirs["spec"]["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}}

    assert children.corrected(theirs, wanted) == stored(wanted)
