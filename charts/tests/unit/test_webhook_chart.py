# SPDX-License-Identifier: Apache-2.0
"""The chart nvdra-webhook: what is registered, with which certificates, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from nvdra_runtime.settings import flags, loader
from nvdra_webhook.endpoints import VALIDATE_PATH, WARN_PATH
from nvdra_webhook.settings import Settings

Render = Callable[..., dict[str, dict[str, Any]]]
Template = Callable[..., Any]

CHART = "nvdra-webhook"
NAME = "nvdra-nvdra-webhook"
MANAGED: dict[str, Any] = {"tls": {"mode": "self-managed"}}
SECRET: dict[str, Any] = {
    "tls": {"mode": "secret", "secret": {"name": "own", "caBundle": "Q0E="}},
}


def pod(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (deployment,) = objects["Deployment"].values()
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return found


def environment(objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    (container,) = pod(objects)["containers"]
    return {each["name"]: each.get("value", "x") for each in container["env"]}


@pytest.mark.parametrize("values", [{}, MANAGED, SECRET], ids=["cert-manager", "managed", "secret"])
def test_every_variable_is_one_of_the_settings_and_they_are_valid(
    render: Render, values: dict[str, Any]
) -> None:
    told = environment(render(CHART, values))
    known = {name for entry in flags.flag_table(Settings) for name in entry.env}
    assert set(told) <= known
    settings = loader.load_or_raise(Settings, [], told)
    assert (settings.port, settings.cluster_lookup_interval) == (443, 120)
    assert bool(settings.tls_secret_name) == (values is MANAGED)
    service = f"{NAME}.nvdra-system.svc"
    assert (service in settings.dns_names) == (values is MANAGED)


def test_a_pod_may_do_nothing_but_listen(render: Render) -> None:
    found = pod(render(CHART))
    (container,) = found["containers"]
    assert found["securityContext"]["runAsNonRoot"]
    assert found["securityContext"]["sysctls"] == [
        {"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}
    ]
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "sysctls" not in pod(render(CHART, {"containerPort": 8443}))["securityContext"]


def test_the_registration_sends_both_resources_in_every_version(render: Render) -> None:
    objects = render(CHART)
    configuration = objects["ValidatingWebhookConfiguration"][f"{NAME}-config"]
    for webhook, wanted in zip(
        configuration["webhooks"],
        (
            ("gpu.nvidia.com", "Fail", 5, VALIDATE_PATH),
            ("warnings.gpu.nvidia.com", "Ignore", 2, WARN_PATH),
        ),
        strict=True,
    ):
        name, failure_policy, seconds, path = wanted
        assert webhook["name"] == name
        assert (webhook["failurePolicy"], webhook["sideEffects"]) == (failure_policy, "None")
        assert (webhook["matchPolicy"], webhook["timeoutSeconds"]) == ("Equivalent", seconds)
        assert webhook["rules"] == [
            {
                "apiGroups": ["resource.k8s.io"],
                "apiVersions": ["v1", "v1beta2", "v1beta1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["resourceclaims", "resourceclaimtemplates"],
                "scope": "Namespaced",
            }
        ]
        service = {"name": NAME, "namespace": "nvdra-system", "port": 443, "path": path}
        assert webhook["clientConfig"] == {"service": service}
    annotations = configuration["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": f"nvdra-system/{NAME}-cert"}


@pytest.mark.parametrize(
    "values", [{"warnings": {"enabled": False}}, {"clusterLookupInterval": "0s"}]
)
def test_nothing_else_is_sent_if_there_is_nothing_to_warn_of(
    render: Render, values: dict[str, Any]
) -> None:
    (configuration,) = render(CHART, values)["ValidatingWebhookConfiguration"].values()
    assert [webhook["name"] for webhook in configuration["webhooks"]] == ["gpu.nvidia.com"]


def test_values_of_an_earlier_release_have_warnings(template: Template) -> None:
    done = template(CHART, {"warnings": None})
    assert done.returncode == 0, done.stderr
    assert "warnings.gpu.nvidia.com" in done.stdout
    assert "timeoutSeconds: 2" in done.stdout


def test_each_mode_has_its_objects(render: Render) -> None:
    manager, managed, secret = (render(CHART, values) for values in ({}, MANAGED, SECRET))
    assert manager["Certificate"][f"{NAME}-cert"]["spec"] == {
        "secretName": f"{NAME}-cert",
        "dnsNames": [f"{NAME}.nvdra-system.svc"],
        "issuerRef": {"kind": "Issuer", "name": f"{NAME}-ca-issuer"},
    }
    authority = manager["Certificate"][f"{NAME}-ca"]["spec"]
    assert authority["isCA"]
    assert authority["issuerRef"] == {"kind": "Issuer", "name": f"{NAME}-issuer"}
    assert {name: issuer["spec"] for name, issuer in manager["Issuer"].items()} == {
        f"{NAME}-issuer": {"selfSigned": {}},
        f"{NAME}-ca-issuer": {"ca": {"secretName": authority["secretName"]}},
    }
    assert "data" not in managed["Secret"][f"{NAME}-cert"]
    tmp = {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}}
    assert pod(managed)["volumes"] == [tmp]
    assert pod(secret)["volumes"] == [tmp, {"name": "cert", "secret": {"secretName": "own"}}]
    registered = secret["ValidatingWebhookConfiguration"][f"{NAME}-config"]["webhooks"]
    assert [each["clientConfig"]["caBundle"] for each in registered] == ["Q0E="] * 2
    for objects in (managed, secret):
        assert not {"Certificate", "Issuer"} & set(objects)
    for objects in (manager, secret):
        assert "Secret" not in objects


@pytest.mark.parametrize(
    ("kind", "wanted"), [("issuer", "Issuer"), ("clusterissuer", "ClusterIssuer")]
)
def test_an_issuer_of_the_cluster_is_used(render: Render, kind: str, wanted: str) -> None:
    manager = {"issuerType": kind, "issuerName": "corporate", "dnsNames": ["a.example"]}
    objects = render(CHART, {"tls": {"certManager": manager}})
    spec = objects["Certificate"][f"{NAME}-cert"]["spec"]
    assert spec["issuerRef"] == {"kind": wanted, "name": "corporate"}
    assert spec["dnsNames"] == [f"{NAME}.nvdra-system.svc", "a.example"]
    assert "Issuer" not in objects


@pytest.mark.parametrize(
    ("tls", "text"),
    [
        (None, "tls.mode=(none): set it to cert-manager, secret or self-managed"),
        ({"mode": ""}, "tls.mode=(none): set it to cert-manager, secret or self-managed"),
        ({"mode": "none"}, "tls.mode=none: set it to cert-manager, secret or self-managed"),
        ({"certManager": None}, "tls.certManager.issuerType=(none): set it to selfsigned"),
        ({"certManager": {"issuerType": ""}}, "tls.certManager.issuerType=(none)"),
        ({"certManager": {"issuerType": "acme"}}, "tls.certManager.issuerType=acme"),
        ({"certManager": {"issuerType": "issuer"}}, "tls.certManager.issuerName is empty"),
        ({"mode": "secret", "secret": None}, "tls.secret.name is empty"),
        ({"mode": "secret"}, "tls.secret.caBundle is empty"),
        ({"mode": "secret", "secret": {"name": "x"}}, "tls.secret.caBundle is empty"),
        ({"typo": 1}, "'typo' not allowed"),
    ],
)
@pytest.mark.parametrize("chart", [CHART, "nvdra"])
def test_what_cannot_work_is_refused(template: Template, chart: str, tls: Any, text: str) -> None:
    values = {"tls": tls}
    if chart == "nvdra":
        values = {"webhook": {"enabled": True, "tls": tls}}
        text = text if "'typo'" in text else f"webhook.{text}"
    done = template(chart, values)
    assert done.returncode != 0
    assert text in done.stderr


def test_replicas_are_spread_and_one_is_kept(render: Render) -> None:
    objects = render(CHART, {"replicas": 2, "networkPolicy": {"enabled": True}})
    assert objects["PodDisruptionBudget"][NAME]["spec"]["minAvailable"] == 1
    (spread,) = pod(objects)["topologySpreadConstraints"]
    labels = objects["Deployment"][NAME]["spec"]["selector"]["matchLabels"]
    assert spread["matchLabelKeys"] == ["pod-template-hash"]
    assert spread["labelSelector"] == {"matchLabels": labels}
    assert set(objects["NetworkPolicy"][NAME]["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    assert "PodDisruptionBudget" not in render(CHART)


def test_the_umbrella_takes_the_reference_drivers_values(render: Render) -> None:
    off = {
        "enabled": False,
        "replicas": 1,
        "servicePort": 443,
        "containerPort": 443,
        "priorityClassName": "system-cluster-critical",
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
        "podAnnotations": {},
        "podSecurityContext": {},
        "nodeSelector": {},
        "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
        "affinity": {},
        "containers": {"webhook": {"securityContext": {"privileged": False}, "resources": {}}},
        "serviceAccount": {"create": True, "name": ""},
        "failurePolicy": "Fail",
        "tls": {
            "mode": "cert-manager",
            "certManager": {"issuerType": "selfsigned", "issuerName": "", "dnsNames": []},
            "secret": {"name": "", "caBundle": ""},
        },
    }
    assert render("nvdra", {"webhook": off}) == render("nvdra")
    on = render("nvdra", {"webhook": {**off, "enabled": True}})
    assert set(on["ValidatingWebhookConfiguration"]) == {"nvdra-webhook-config"}
    assert on["Service"]["nvdra-webhook"]["spec"]["selector"] == {
        "app.kubernetes.io/name": "webhook",
        "app.kubernetes.io/instance": "nvdra",
    }


def test_a_value_in_the_subcharts_own_name_is_an_error(template: Template) -> None:
    done = template("nvdra", {"nvdra-webhook": {"replicas": 2}})
    assert "nvdra-webhook: set as webhook" in done.stderr


def test_a_policy_keeps_the_registration_where_the_webhook_may_change_it(render: Render) -> None:
    objects = render(CHART, MANAGED)
    policy = objects["ValidatingAdmissionPolicy"][f"{NAME}-config"]["spec"]
    (condition,) = policy["matchConditions"]
    account = pod(objects)["serviceAccountName"]
    assert condition["expression"] == (
        f"request.userInfo.username == 'system:serviceaccount:nvdra-system:{account}'"
    )
    binding = objects["ValidatingAdmissionPolicyBinding"][f"{NAME}-config"]["spec"]
    assert binding == {"policyName": f"{NAME}-config", "validationActions": ["Deny"]}
    assert "ValidatingAdmissionPolicy" not in render(CHART, SECRET)
