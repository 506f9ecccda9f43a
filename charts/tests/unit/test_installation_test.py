# SPDX-License-Identifier: Apache-2.0
"""What `helm test` runs: one pod, with an account and rights of its own, gone afterwards."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from nvdra_runtime.installation.findings import Checks
from nvdra_testing import charts

Json = dict[str, Any]
Render = Callable[..., list[Json]]

WEBHOOK = {"webhook": {"enabled": True, "tls": {"mode": "self-managed"}}}
COMPONENTS = ("nvdra-gpu-plugin", "nvdra-cd-plugin", "nvdra-cd-controller", "nvdra-webhook")


def pod(objects: list[Json]) -> Json:
    (found,) = (each for each in objects if each["kind"] == "Pod")
    return found


def checks(objects: list[Json]) -> Json:
    (made,) = (each for each in objects if each["kind"] == "ConfigMap")
    found: Json = json.loads(made["data"]["checks"])
    return found


def test_one_pod_checks_all_components(render_test: Render) -> None:
    found = checks(render_test("nvdra", WEBHOOK))
    assert [each["program"] for each in found["plugins"]] == ["nvdra-gpu-plugin", "nvdra-cd-plugin"]
    names = [each["name"] for each in found["deployments"]]
    assert names == ["nvdra-nvdra-cd-controller", "nvdra-webhook"]
    assert found["apiVersions"] == ["resource.nvidia.com/v1beta1"]
    assert len(found["webhooks"]) == 1
    assert "compute-domain-daemon.nvidia.com" in found["deviceClasses"]


def test_the_test_knows_where_the_plugins_may_run_and_which_value_says_it(
    render_test: Render,
) -> None:
    selector, tolerations = {"pool": "a"}, [{"key": "sku", "operator": "Exists"}]
    own = {"nodeSelector": selector, "tolerations": tolerations, "affinity": None}
    for chart, values, setting in (
        ("nvdra", {"nvdra-gpu-plugin": {"kubeletPlugin": own}}, "nvdra-gpu-plugin.kubeletPlugin"),
        ("nvdra-gpu-plugin", {"kubeletPlugin": own}, "kubeletPlugin"),
    ):
        assert checks(render_test(chart, values))["plugins"][0]["placement"] == {
            "nodeSelector": {"kubernetes.io/os": "linux", **selector},
            "terms": [],
            "tolerations": tolerations,
            "setting": f"{setting}.tolerations",
        }
    found = checks(render_test("nvdra"))["plugins"]
    assert [len(each["placement"]["terms"]) for each in found] == [5, 5]
    Checks.model_validate(checks(render_test("nvdra", WEBHOOK)))


def test_the_pod_does_not_depend_on_what_is_checked(render_test: Render) -> None:
    """`helm template | kubectl apply` with other values: a pod cannot be changed."""
    one, other = (pod(render_test("nvdra", values)) for values in ({}, WEBHOOK))
    assert one == other


def test_openshift_chooses_the_user_of_the_pod(render_test: Render) -> None:
    served = "--api-versions=security.openshift.io/v1/SecurityContextConstraints"
    context = pod(render_test("nvdra", {}, served))["spec"]["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize("chart", ["nvdra", *COMPONENTS])
def test_with_network_policies_the_pod_has_one_that_lets_it_out(
    render_test: Render, chart: str
) -> None:
    webhook = {**WEBHOOK["webhook"], **charts.RESTRICTED["nvdra-webhook"]}
    parts = {name: charts.RESTRICTED[name] for name in COMPONENTS[:3]}
    values = {**parts, "webhook": webhook}
    others = {"global": {"apiServerPorts": [443, 16443]}}
    objects = render_test(
        chart, {**(values if chart == "nvdra" else charts.RESTRICTED[chart]), **others}
    )
    (policy,) = (each for each in objects if each["kind"] == "NetworkPolicy")
    labels = pod(objects)["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    (egress,) = policy["spec"]["egress"]
    assert [each["port"] for each in egress["ports"]] == [443, 16443]
    assert not any(each["kind"] == "NetworkPolicy" for each in render_test(chart))


def test_the_pod_runs_on_the_nodes_that_its_image_suits(render_test: Render) -> None:
    selector = {"kubernetes.io/arch": "arm64"}
    values = {"global": {"testPod": {"nodeSelector": selector, "tolerations": []}}}
    spec = pod(render_test("nvdra", values))["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", **selector}
    assert "tolerations" not in spec
    (toleration,) = pod(render_test("nvdra"))["spec"]["tolerations"]
    assert toleration["key"] == "nvidia.com/gpu"


def test_what_is_not_installed_is_not_checked(render_test: Render) -> None:
    found = checks(render_test("nvdra", {"resources": {"computeDomains": {"enabled": False}}}))
    assert [each["program"] for each in found["plugins"]] == ["nvdra-gpu-plugin"]
    assert set(found) == {"deviceClasses", "plugins"}
    off = {"enabled": False}
    assert render_test("nvdra", {"resources": {"gpus": off, "computeDomains": off}}) == []


@pytest.mark.parametrize("chart", COMPONENTS)
def test_a_component_alone_has_a_test_of_its_own_image(render_test: Render, chart: str) -> None:
    (container,) = pod(render_test(chart))["spec"]["containers"]
    assert container["image"] == charts.image(chart)


def test_it_needs_no_privilege_and_everything_is_deleted_after_a_success(
    render_test: Render,
) -> None:
    objects = render_test("nvdra", WEBHOOK)
    for each in objects:
        annotations = each["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        assert "hook-succeeded" in annotations["helm.sh/hook-delete-policy"]
    spec = pod(objects)["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["serviceAccountName"] == pod(objects)["metadata"]["name"]


@pytest.mark.parametrize(("namespace", "of_claims"), [("a", "default"), ("default", "kube-public")])
def test_the_webhook_is_tried_in_a_namespace_whose_claims_it_examines(
    render_test: Render, namespace: str, of_claims: str
) -> None:
    values = {**WEBHOOK, "global": {"allowDefaultNamespace": True}}
    (webhook,) = checks(render_test("nvdra", values, namespace=namespace))["webhooks"]
    assert webhook["claimNamespace"] == of_claims
