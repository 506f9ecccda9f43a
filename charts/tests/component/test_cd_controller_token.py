# SPDX-License-Identifier: Apache-2.0
"""What an API server answers to a thief of the controller's token.

The account has all rights here: what is refused, an admission policy refuses.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from nvdra_api import names
from nvdra_cd_controller import children
from nvdra_cd_controller.crds import definitions
from nvdra_testing.control_plane import domain_values, installation, pod_changes
from nvdra_testing.control_plane.installation import (
    CONTROLLER,
    DAEMONSETS,
    GPU_PLUGIN,
    NAMESPACE,
    NETWORK_POLICIES,
    TENANT,
    Installation,
)
from nvdra_testing.control_plane.pod_changes import (
    Change,
    changed,
    container_of,
    in_container,
    in_pod,
    in_template,
    pod_of,
    with_argument,
    with_host_path,
    with_variable,
    with_volume,
)
from nvdra_testing.control_plane.pod_tokens import Answer

UID = domain_values.UID
LABEL = names.DOMAIN_LABEL
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DOMAINS = f"/apis/resource.nvidia.com/v1beta1/namespaces/{TENANT}/computedomains"
NOTHING = "no volumes, and nothing of its node"
NAME = "is called computedomain-daemon-UID, and is for nodes with the label"
LABELS = f"has the label {LABEL} alone, and no annotations"
COMMAND = "runs the command compute-domain-daemon with its variables, and nothing of Secrets"
NO_PRIVILEGES = "has no privileges, host ports"
SECRET = {"secretKeyRef": {"name": "nvdra-nvdra-webhook-cert", "key": "tls.key"}}


def with_owner(obj: dict[str, Any]) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "gone"}
    obj["metadata"]["ownerReferences"] = [owner]


ATTACKS: Mapping[str, tuple[Change, str]] = {
    "another name": (pod_changes.named(GPU_PLUGIN), NAME),
    "all nodes": (in_pod(nodeSelector={}), NAME),
    "other nodes": (in_pod(nodeSelector={"a": "b"}), NAME),
    "no label": (lambda obj: obj["metadata"].update(labels={}), NAME),
    "labels of a Service": (
        lambda obj: obj["spec"]["template"]["metadata"]["labels"].update(a="b"),
        LABELS,
    ),
    "annotations": (in_template(annotations={"a": "b"}), LABELS),
    "a finalizer": (
        lambda obj: obj["metadata"]["finalizers"].append("a.example.com/b"),
        "has no owners, and no finalizers but",
    ),
    "an owner": (with_owner, "has no owners, and no finalizers but"),
    "finalizers of pods": (in_template(finalizers=["a.example.com/b"]), "has no finalizers"),
    "two containers": (pod_changes.with_container(), "has one container"),
    "affinity": (in_pod(affinity={"nodeAffinity": {}}), NOTHING),
    "the node's processes": (in_pod(hostPID=True), NOTHING),
    "the pod's processes": (in_pod(shareProcessNamespace=True), NOTHING),
    "no users of its own": (in_pod(hostUsers=False), NOTHING),
    "another seccomp profile": (pod_changes.unconfined, NOTHING),
    "another user": (in_pod(securityContext={"runAsUser": 0}), NOTHING),
    "its token": (in_pod(automountServiceAccountToken=False), NOTHING),
    **pod_changes.every_field(NOTHING, NO_PRIVILEGES),
    # Not beside the sysctl of an IMEX daemon, as the API server itself says.
    "pod's hostNetwork": (in_pod(hostNetwork=True, securityContext={}), NOTHING),
    "another account": (pod_changes.with_account(GPU_PLUGIN), "has the service account compute-"),
    "another claim": (
        in_pod(
            resourceClaims=[{"name": "compute-domain-daemon", "resourceClaimName": "of-a-tenant"}]
        ),
        "has the claim of its ComputeDomain, and no other",
    ),
    "another priority": (in_pod(priorityClassName="system-cluster-critical"), "priority class"),
    "another pull secret": (in_pod(imagePullSecrets=[{"name": "x"}]), "image pull secrets"),
    "another image": (in_container(image="busybox"), "an IMEX daemon runs in the image"),
    "another command": (in_container(command=["sh"]), COMMAND),
    "arguments": (with_argument("--x"), COMMAND),
    "a variable": (with_variable(name="LD_PRELOAD", value="x"), COMMAND),
    "a Secret in a variable": (
        with_variable(name="OTEL_EXPORTER_OTLP_HEADERS", valueFrom=SECRET),
        COMMAND,
    ),
    "a startup probe": (in_container(startupProbe=pod_changes.COMMAND), NO_PRIVILEGES),
    "a readiness probe that runs a command": (
        in_container(readinessProbe=pod_changes.COMMAND),
        NO_PRIVILEGES,
    ),
    "a readiness probe of another host": (
        in_container(
            readinessProbe={"httpGet": {"path": "/readyz", "port": "http", "host": "192.0.2.1"}}
        ),
        NO_PRIVILEGES,
    ),
    "a readiness probe of another path": (
        in_container(readinessProbe={"httpGet": {"path": "/debug", "port": "http"}}),
        NO_PRIVILEGES,
    ),
    "privileges": (in_container(securityContext={"privileged": True}), NO_PRIVILEGES),
    "capabilities": (
        in_container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
        NO_PRIVILEGES,
    ),
    "host ports": (in_container(ports=[{"containerPort": 443, "hostPort": 443}]), NO_PRIVILEGES),
    "the node's root": (with_host_path("/"), NOTHING),
    "a Secret": (with_volume({"secret": {"secretName": "nvdra-nvdra-webhook-cert"}}), NOTHING),
}


@pytest.fixture
def daemonset(installed: Installation) -> Iterator[str]:
    """The path of a DaemonSet that the controller has made."""
    wanted = installed.daemonset()
    path = f"{DAEMONSETS}/{wanted['metadata']['name']}"
    made = installed.controller.create(DAEMONSETS, wanted)
    assert made.status == 201, made
    yield path
    installed.admin.merge(path, {"metadata": {"finalizers": None}})
    installed.admin.send("DELETE", path)


def assert_refused(answer: Answer, policy: str, words: str) -> None:
    assert answer.status == 403, answer
    assert f"ValidatingAdmissionPolicy '{CONTROLLER}-{policy}'" in answer.text
    assert words in answer.text


def test_the_controller_corrects_a_daemonset_and_keeps_what_an_administrator_has_added(
    installed: Installation, daemonset: str
) -> None:
    stored = installed.admin.send("GET", daemonset).body
    container_of(stored).update(command=["sh"], securityContext={"runAsUser": 0})
    more = {"hostAliases": [{"ip": "192.0.2.1", "hostnames": ["x"]}]}
    pod_of(stored).update(more)
    pod_of(stored)["securityContext"]["fsGroup"] = 7
    stored["metadata"]["labels"] = {}
    edited = installed.admin.send("PUT", daemonset, stored)
    assert edited.status == 200, edited
    wanted = children.daemonset(UID, NAMESPACE, installed.child_config)
    corrected = children.corrected(edited.body, wanted)
    assert corrected is not None
    answer = installed.controller.send("PUT", daemonset, corrected)
    assert answer.status == 200, answer
    assert container_of(answer.body)["command"][0] == "compute-domain-daemon"
    assert container_of(answer.body)["securityContext"] == {"runAsUser": 0}
    assert pod_of(answer.body).items() >= more.items()
    assert pod_of(answer.body)["securityContext"]["fsGroup"] == 7


def test_the_controller_deletes_a_daemonset_that_is_not_as_it_should_be(
    installed: Installation, daemonset: str
) -> None:
    stored = installed.admin.send("GET", daemonset).body
    container_of(stored)["command"] = ["sh"]
    assert installed.admin.send("PUT", daemonset, stored).status == 200
    controller = installed.controller
    for answer in (
        controller.merge(daemonset, {"metadata": {"annotations": {"a": "b"}}}),
        controller.send("DELETE", daemonset),
        controller.merge(daemonset, {"metadata": {"finalizers": None}}),
    ):
        assert answer.status == 200, answer
    assert installed.admin.send("GET", daemonset).status == 404


def test_what_another_admission_adds_is_admitted_if_it_is_named(installed: Installation) -> None:
    obj = changed(installed.daemonset(), pod_changes.with_admitted_additions)
    answer = installed.controller.try_create(DAEMONSETS, obj)
    assert answer.status == 201, answer


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_stolen_token_makes_no_other_pod(installed: Installation, attack: str) -> None:
    change, words = ATTACKS[attack]
    obj = changed(installed.daemonset(), change)
    assert_refused(installed.controller.try_create(DAEMONSETS, obj), "daemonsets", words)


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "another name"])
def test_a_stolen_token_changes_no_daemonset_into_another(
    installed: Installation, daemonset: str, attack: str
) -> None:
    change, words = ATTACKS[attack]
    obj = changed(installed.daemonset(), change)
    container_of(obj)["terminationMessagePolicy"] = "FallbackToLogsOnError"  # the spec is another
    answer = installed.controller.send("PUT", f"{daemonset}?dryRun=All", obj)
    assert_refused(answer, "daemonsets", words)


def test_a_stolen_token_touches_no_other_daemonset(installed: Installation) -> None:
    stored = installed.admin.create(DAEMONSETS, installation.stranger("DaemonSet")).body
    path, controller = f"{DAEMONSETS}/stranger", installed.controller
    for answer in (
        controller.send("DELETE", path),
        controller.send("DELETE", DAEMONSETS),
        controller.send("PUT", path, stored),
        controller.merge(path, {"spec": {"template": {"spec": {"hostPID": True}}}}),
        controller.merge(path, {"metadata": {"labels": {LABEL: UID}}}),
        controller.merge(path, {"metadata": {"finalizers": ["a.example.com/b"]}}),
    ):
        assert_refused(answer, "daemonsets", "may change and delete no daemonsets but those of")
    answer = controller.merge(f"{path}/status", {"status": {"numberReady": 9}})
    assert_refused(answer, "daemonsets", "may not write the status of daemonsets")
    assert installed.admin.send("DELETE", path).status == 200, "it is there"


@pytest.fixture
def network_policy(installed: Installation) -> Iterator[str]:
    """The path of a NetworkPolicy that the controller has made."""
    wanted = installed.network_policy()
    path = f"{NETWORK_POLICIES}/{wanted['metadata']['name']}"
    made = installed.controller.create(NETWORK_POLICIES, wanted)
    assert made.status == 201, made
    yield path
    installed.admin.send("DELETE", path)


def test_the_controller_makes_corrects_and_deletes_the_network_policy_of_a_domain(
    installed: Installation, network_policy: str
) -> None:
    wanted = installed.network_policy()
    stored = installed.admin.send("GET", network_policy).body
    assert children.corrected(stored, wanted) is None, "it is stored as it was sent"
    stored["spec"] = {"podSelector": {}, "ingress": [{}]}
    stored["metadata"]["labels"] = {"a": "b"}
    edited = installed.admin.send("PUT", network_policy, stored)
    assert edited.status == 200, edited
    corrected = children.corrected(edited.body, wanted)
    answer = installed.controller.send("PUT", network_policy, corrected)
    assert answer.status == 200, answer
    assert answer.body["spec"] == wanted["spec"]
    answer = installed.controller.send("DELETE", network_policy)
    assert answer.status == 200, answer


OPEN_TO_ALL = "lets the same ComputeDomain's daemons in"
OUT_TO_ALL = "lets daemons out to the same ComputeDomain's, and to the ports of the release"
OF_ONE_DOMAIN = "is of the connections of one ComputeDomain's daemons"
ITS_NAME = "is called computedomain-daemon-UID, and has the label"
NO_POLICIES = "may make, change and delete no network policies but those of IMEX daemons"


def in_policy(**fields: Any) -> Change:
    return lambda obj: obj["spec"].update(fields)


def of_daemons(uid: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": {LABEL: uid}}}


OTHER_POLICIES: Mapping[str, tuple[Change, str]] = {
    "another name": (pod_changes.named(GPU_PLUGIN), NO_POLICIES),
    "another domain's label": (
        lambda obj: obj["metadata"]["labels"].update({LABEL: "another"}),
        ITS_NAME,
    ),
    "no label": (lambda obj: obj["metadata"].update(labels={}), ITS_NAME),
    "of all pods": (in_policy(podSelector={}), OF_ONE_DOMAIN),
    "of all daemons": (
        in_policy(podSelector={"matchExpressions": [{"key": LABEL, "operator": "Exists"}]}),
        OF_ONE_DOMAIN,
    ),
    "of other pods": (in_policy(podSelector={"matchLabels": {"a": "b"}}), OF_ONE_DOMAIN),
    "of incoming connections alone": (
        in_policy(policyTypes=["Ingress"], egress=[]),
        OF_ONE_DOMAIN,
    ),
    "everything in": (in_policy(ingress=[{}]), OPEN_TO_ALL),
    "everybody in": (in_policy(ingress=[{"ports": [{"port": 50000}]}]), OPEN_TO_ALL),
    "another domain in": (in_policy(ingress=[{"from": [of_daemons("another")]}]), OPEN_TO_ALL),
    "another namespace in": (
        in_policy(ingress=[{"from": [{**of_daemons(UID), "namespaceSelector": {}}]}]),
        OPEN_TO_ALL,
    ),
    "a network in": (
        in_policy(ingress=[{"from": [of_daemons(UID), {"ipBlock": {"cidr": "0.0.0.0/0"}}]}]),
        OPEN_TO_ALL,
    ),
    "many ports in": (
        in_policy(ingress=[{"ports": [{"port": 8080, "endPort": 65535}]}]),
        OPEN_TO_ALL,
    ),
    "every port in": (in_policy(ingress=[{"ports": [{"protocol": "TCP"}]}]), OPEN_TO_ALL),
    "a named port in": (in_policy(ingress=[{"ports": [{"port": "imex"}]}]), OPEN_TO_ALL),
    "everything out": (in_policy(egress=[{}]), OUT_TO_ALL),
    "another port out": (in_policy(egress=[{"ports": [{"port": 25}]}]), OUT_TO_ALL),
    "another domain out": (in_policy(egress=[{"to": [of_daemons("another")]}]), OUT_TO_ALL),
}


@pytest.mark.parametrize("attack", OTHER_POLICIES)
def test_a_stolen_token_makes_no_other_network_policy(installed: Installation, attack: str) -> None:
    change, words = OTHER_POLICIES[attack]
    obj = changed(installed.network_policy(), change)
    answer = installed.controller.try_create(NETWORK_POLICIES, obj)
    assert_refused(answer, "networkpolicies", words)


@pytest.mark.parametrize("attack", [name for name in OTHER_POLICIES if name != "another name"])
def test_a_stolen_token_opens_no_network_policy(
    installed: Installation, network_policy: str, attack: str
) -> None:
    change, words = OTHER_POLICIES[attack]
    obj = changed(installed.network_policy(), change)
    answer = installed.controller.send("PUT", f"{network_policy}?dryRun=All", obj)
    assert_refused(answer, "networkpolicies", words)


def test_a_stolen_token_touches_no_network_policy_of_others(installed: Installation) -> None:
    foreign = installation.foreign_network_policy()
    stored = installed.admin.create(NETWORK_POLICIES, foreign).body
    path, controller = f"{NETWORK_POLICIES}/stranger", installed.controller
    elsewhere = NETWORK_POLICIES.replace(NAMESPACE, TENANT)
    for answer in (
        controller.send("DELETE", path),
        controller.send("DELETE", NETWORK_POLICIES),
        controller.send("PUT", path, stored),
        controller.merge(path, {"spec": {"podSelector": {}}}),
        controller.merge(path, {"metadata": {"labels": {LABEL: UID}}}),
        controller.try_create(
            elsewhere, {**foreign, "metadata": {"name": "x", "namespace": TENANT}}
        ),
    ):
        assert_refused(answer, "networkpolicies", NO_POLICIES)
    assert installed.admin.send("DELETE", path).status == 200, "it is there"


@pytest.mark.parametrize("is_of_daemons", [False, True])
def test_the_controller_makes_corrects_and_deletes_templates_of_domains(
    installed: Installation, is_of_daemons: bool
) -> None:
    wanted = installed.template(is_of_daemons=is_of_daemons)
    collection = installed.resource_path("resourceclaimtemplates", wanted["metadata"]["namespace"])
    path, controller = f"{collection}/{wanted['metadata']['name']}", installed.controller
    made = controller.create(collection, wanted)
    assert made.status == 201, made
    lost = installed.admin.merge(path, {"metadata": {"labels": None, "finalizers": None}})
    assert lost.status == 200, lost
    metadata = {key: wanted["metadata"][key] for key in ("labels", "finalizers")}
    for answer in (
        controller.merge(path, {"metadata": metadata}),
        controller.merge(path, {"metadata": {"annotations": {"a": "b"}}}),
        controller.send("DELETE", path),
        controller.merge(path, {"metadata": {"finalizers": None}}),
    ):
        assert answer.status == 200, answer
    assert installed.admin.send("GET", path).status == 404


@pytest.mark.parametrize(
    "what",
    ["a tenant's", "with a label", "another's", "without a label", "with admin access"],
)
def test_a_stolen_token_makes_no_other_template(installed: Installation, what: str) -> None:
    of_another, unlabelled, admins = (installed.template() for _ in range(3))
    of_another["metadata"]["labels"][LABEL] = "another"
    del unlabelled["metadata"]["labels"]
    admins["metadata"]["namespace"] = "admins"
    (request,) = admins["spec"]["spec"]["devices"]["requests"]
    request.get("exactly", request)["adminAccess"] = True
    obj = {
        "a tenant's": installed.template_of_a_tenant(),
        "with a label": installed.template_of_a_tenant(**{LABEL: UID}),
        "another's": of_another,
        "without a label": unlabelled,
        "with admin access": admins,
    }[what]
    path = installed.resource_path("resourceclaimtemplates", obj["metadata"]["namespace"])
    words = "asks for a channel or a daemon of the ComputeDomain that its label"
    assert_refused(installed.controller.try_create(path, obj), "templates", words)


def test_a_stolen_token_touches_no_template_of_a_tenant(installed: Installation) -> None:
    collection = installed.resource_path("resourceclaimtemplates")
    assert installed.admin.create(collection, installed.template_of_a_tenant()).status == 201
    path, controller = f"{collection}/of-a-tenant", installed.controller
    for answer in (
        controller.send("DELETE", path),
        controller.send("DELETE", collection),
        controller.merge(path, {"metadata": {"labels": {LABEL: UID}}}),
    ):
        assert_refused(answer, "templates", "claim template")
    assert installed.admin.send("DELETE", path).status == 200, "it is there"


def with_converter(obj: dict[str, Any]) -> None:
    server = {"url": "https://192.0.2.1/convert"}
    webhook = {"clientConfig": server, "conversionReviewVersions": ["v1"]}
    obj["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}


def not_served(obj: dict[str, Any]) -> None:
    (version,) = obj["spec"]["versions"]
    obj["spec"]["versions"] = [{**version, "name": "v2"}, {**version, "storage": False}]
    obj["spec"]["versions"][1]["served"] = False


OTHER_DEFINITIONS: Mapping[str, tuple[Change, str]] = {
    "a webhook that converts": (with_converter, "has no webhook that converts its objects"),
    "v1beta1 is not served": (not_served, "serves v1beta1"),
    "an owner": (with_owner, "has no owners and no finalizers"),
    "a finalizer": (
        lambda obj: obj["metadata"].update(finalizers=["a.example.com/b"]),
        "has no owners and no finalizers",
    ),
    "a label of Argo CD": (
        lambda obj: obj["metadata"]["labels"].update({"argocd.argoproj.io/instance": "other"}),
        "has the labels and annotations of nvdra alone",
    ),
    "helm deletes it": (
        lambda obj: obj["metadata"]["annotations"].pop("helm.sh/resource-policy"),
        "and stays when a release ends",
    ),
}


@pytest.mark.parametrize("attack", OTHER_DEFINITIONS)
def test_a_stolen_token_writes_no_other_definition(installed: Installation, attack: str) -> None:
    change, words = OTHER_DEFINITIONS[attack]
    for own in definitions.own():
        path = f"{DEFINITIONS}/{own.name}"
        stored = installed.admin.send("GET", path).body
        answer = installed.controller.send("PUT", f"{path}?dryRun=All", changed(stored, change))
        assert_refused(answer, "definitions", words)


def test_a_stolen_token_makes_no_definition_of_another_kind(installed: Installation) -> None:
    for own in definitions.own():
        other = changed(
            own.document,
            lambda obj: obj["spec"]["names"].update(kind="Secret", listKind="SecretList"),
        )
        answer = installed.controller.try_create(DEFINITIONS, other)
        assert_refused(answer, "definitions", "has its group, kind and scope")


def test_a_stolen_token_touches_no_definition_of_others_and_deletes_none(
    installed: Installation,
) -> None:
    (own, _), controller = definitions.own(), installed.controller
    other = changed(own.document, lambda obj: obj["metadata"].update(name="rings.example.com"))
    other["spec"].update(group="example.com")
    other["spec"]["names"] = {"plural": "rings", "kind": "Ring"}
    for answer in (
        controller.try_create(DEFINITIONS, other),
        controller.send("DELETE", f"{DEFINITIONS}/{own.name}"),
        controller.merge(f"{DEFINITIONS}/{own.name}/status", {"status": {"conditions": []}}),
    ):
        assert_refused(answer, "definitions", "may make and change the definitions of")


def test_the_controller_writes_its_definitions_and_removes_a_webhook_that_converts(
    installed: Installation,
) -> None:
    for own in definitions.own():
        path = f"{DEFINITIONS}/{own.name}?dryRun=All"
        stored = installed.admin.send("GET", path).body
        more = {"metadata": {"annotations": {definitions.VERSION_ANNOTATION: "99"}}}
        for change in (more, {"spec": {"conversion": {"strategy": "None", "webhook": None}}}):
            answer = installed.controller.merge(path, change)
            assert answer.status == 200, answer
        assert stored["spec"]["conversion"] == {"strategy": "None"}


@pytest.fixture
def domain(installed: Installation) -> Iterator[str]:
    """The path of a tenant's domain, on which another controller has a finalizer."""
    body = domain_values.domain_json()
    body["metadata"] = {"name": "ring", "namespace": TENANT, "finalizers": ["a.example.com/b"]}
    made = installed.admin.create(DOMAINS, body)
    assert made.status == 201, made
    yield f"{DOMAINS}/ring"
    installed.admin.merge(f"{DOMAINS}/ring", {"metadata": {"finalizers": None}})
    installed.admin.send("DELETE", f"{DOMAINS}/ring")


def test_the_controller_writes_its_finalizer_and_the_settings_of_a_domain(
    installed: Installation, domain: str
) -> None:
    for metadata in (
        {"finalizers": ["a.example.com/b", names.DOMAIN_FINALIZER]},
        {"annotations": {names.DOMAIN_SETTINGS_ANNOTATION: "{}"}},
        {"finalizers": ["a.example.com/b"]},
    ):
        answer = installed.controller.merge(domain, {"metadata": metadata})
        assert answer.status == 200, answer
    status = installed.admin.send("GET", domain).body | {"status": {"status": "NotReady"}}
    answer = installed.controller.send("PUT", f"{domain}/status", status)
    assert answer.status == 200, answer


FINALIZER = "may change nothing of a ComputeDomain but its finalizer"
ANNOTATION = "may change no annotation of a ComputeDomain but nvdra.nvidia.com/domain-settings"


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"finalizers": None}, FINALIZER),
        ({"finalizers": ["a.example.com/b", "c.example.com/d"]}, FINALIZER),
        # What has an owner that does not exist, the garbage collector deletes.
        (
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "gone"}]},
            FINALIZER,
        ),
        ({"labels": {"a": "b"}}, ANNOTATION),
        ({"annotations": {"a": "b"}}, ANNOTATION),
    ],
)
def test_a_stolen_token_writes_nothing_else_of_a_domain(
    installed: Installation, domain: str, metadata: dict[str, object], words: str
) -> None:
    answer = installed.controller.merge(domain, {"metadata": metadata})
    assert_refused(answer, "domains", words)


def test_what_another_admission_adds_to_a_domain_is_admitted_if_it_is_named(
    installed: Installation, domain: str
) -> None:
    """It may say of each change who made it, and would be part of each write of ours."""
    added = {"policies.kyverno.io/changed-by": "x"}
    for metadata in ({"annotations": added}, {"labels": added}):
        answer = installed.controller.merge(domain, {"metadata": metadata})
        assert answer.status == 200, answer
