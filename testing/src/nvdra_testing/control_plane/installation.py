# SPDX-License-Identifier: Apache-2.0
"""The charts with every gate on an API server without controllers: their admission policies.

The accounts of the driver have all rights there, so that what is refused, a policy refuses. What
the product's own code would send is built from the variables of the rendered pods.
"""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nvdra_api.gates import FeatureGates
from nvdra_api.ids import DeviceName, DomainUID, GpuUUID, NodeName
from nvdra_cd_controller import app as controller_app
from nvdra_cd_controller import children
from nvdra_cd_controller.children import ChildConfig
from nvdra_cd_controller.settings import Settings as ControllerSettings
from nvdra_gpu_plugin.devices import mps_layout
from nvdra_gpu_plugin.devices.steps import ShareByMps
from nvdra_gpu_plugin.mps import deployment
from nvdra_gpu_plugin.settings import Settings as PluginSettings
from nvdra_gpu_plugin.subsystems import mps
from nvdra_runtime.kube import apiversions
from nvdra_runtime.resourceslices import pool_diff
from nvdra_runtime.settings import loader

from nvdra_testing import yaml_documents
from nvdra_testing.charts import folder
from nvdra_testing.control_plane import domain_objects, domain_values, pod_tokens
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.pod_tokens import Answer, User

Json = dict[str, Any]

NAMESPACE: Final = "nvdra-system"
TENANT: Final = "team-a"
"""The namespace of a tenant."""
GPU_PLUGIN: Final = "nvdra-nvdra-gpu-plugin"
CONTROLLER: Final = "nvdra-nvdra-cd-controller"
WEBHOOK: Final = "nvdra-webhook"
"""Names of accounts, of the charts' objects, and the beginnings of those of policies."""
NODE: Final = "node-1"
OTHER_NODE: Final = "node-2"
DAEMON_ID: Final = "9a0d4a54-1a3b-4d0c-b6a4-54a1f0f0c001-a8cac"
DEPLOYMENTS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
NETWORK_POLICIES: Final = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
DAEMONSETS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

VALUES: Final = {
    "global": {
        "featureGates": {"AllAlpha": True},
        "imageRegistry": "registry.example.com:5000/mirror",
        "imagePullSecrets": [{"name": "regcred"}],
        "additionalNamespaces": ["old"],
        "admittedByOthers": ["policies.kyverno.io/", "injected"],
        "nvidiaDriverRoot": "/run/nvidia/driver",
        "otlp": {"endpoint": "http://collector.monitoring:4318"},
    },
    "webhook": {"enabled": True, "tls": {"mode": "self-managed"}},
    "nvdra-cd-controller": {
        "daemon": {
            "priorityClassName": "system-node-critical",
            "resources": {"limits": {"memory": "200Mi"}},
            "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
        }
    },
}
_UUIDS: Final = [GpuUUID(f"GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb8{index}") for index in range(2)]
_ENFORCED_S: Final = 60.0
"""A policy takes effect a second or two after its creation."""
_PATHS: Final = {
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/"
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/"
    "validatingadmissionpolicybindings",
    "ValidatingWebhookConfiguration": WEBHOOKS,
}
"""What is installed; of the rest nothing matters here."""


@dataclass(frozen=True)
class Installation:
    """The charts on an API server.

    Attributes:
        server: The API server.
        admin: An administrator.
        plugin: Who has the token of the GPU plugin on `NODE`.
        controller: Who has the token of the controller.
        webhook: Who has that of the webhook.
        objects: What helm has rendered, by kind and name.
        resource_api: Path of the newest version of resource.k8s.io.
    """

    server: ApiServer
    admin: User
    plugin: User
    controller: User
    webhook: User
    objects: Mapping[tuple[str, str], Json]
    resource_api: str

    def environment(self, kind: str, name: str, node: str) -> dict[str, str]:
        """The variables of a program, as its pod has them."""
        (container,) = self.objects[kind, name]["spec"]["template"]["spec"]["containers"]
        fields = {"POD_NAME": "x", "POD_UID": "u", "NODE_NAME": node, "NAMESPACE": NAMESPACE}
        return {
            variable["name"]: variable.get("value", fields.get(variable["name"], ""))
            for variable in container["env"]
        }

    def mps_daemon(self, node: str = NODE) -> Json:
        """The Deployment that the GPU plugin on a node makes for a claim."""
        given = self.environment("DaemonSet", GPU_PLUGIN, node)
        settings = loader.load_or_raise(PluginSettings, [], given)
        step = ShareByMps(
            gpu=_UUIDS[0],
            device=DeviceName("gpu-0"),
            devices=(DeviceName("gpu-0"), DeviceName("gpu-1")),
            thread_percentage=50,
            is_multi_user=True,
            run="b0f3c1aa5d0c4d52a2b6d3f1a0c9e877",
            directory=str(settings.plugin_dir / mps_layout.FOLDER / DAEMON_ID),
        )
        common = mps.daemon_settings(settings, FeatureGates.parse("MPSSupport=true"))
        made = deployment.manifest(step, _UUIDS, dict.fromkeys(_UUIDS, 10240), common)
        return pool_diff.with_node_owner(made, NodeName(node), "its-uid")

    @property
    def child_config(self) -> ChildConfig:
        given = self.environment("Deployment", CONTROLLER, NODE)
        return controller_app.child_config(loader.load_or_raise(ControllerSettings, [], given))

    def daemonset(self, uid: DomainUID = domain_values.UID) -> Json:
        """The DaemonSet that the controller makes for a domain."""
        return children.creation_body(children.daemonset(uid, NAMESPACE, self.child_config))

    def network_policy(self, uid: DomainUID = domain_values.UID) -> Json:
        """The NetworkPolicy that the controller makes for the daemons of a domain."""
        made = children.network_policy(uid, NAMESPACE, self.child_config)
        assert made is not None
        return made

    def template(self, *, is_of_daemons: bool = False) -> Json:
        """A claim template of the controller for a domain, in the version that is served."""
        domain = domain_values.domain()
        made = (
            children.daemon_claim_template(domain, NAMESPACE)
            if is_of_daemons
            else children.workload_claim_template(domain, self.child_config)
        )
        return apiversions.template_to_version(self.resource_version, made)

    def template_of_a_tenant(self, **labels: str) -> Json:
        """A claim template that has nothing to do with domains."""
        return {
            "apiVersion": f"resource.k8s.io/{self.resource_version}",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "of-a-tenant", "namespace": TENANT, "labels": labels},
            "spec": {"spec": {"devices": {"requests": [self.request()]}}},
        }

    def request(self) -> Json:
        """A request of a GPU."""
        wish = {"deviceClassName": "gpu.nvidia.com"}
        is_flat = self.resource_version == "v1beta1"
        return {"name": "gpu", **(wish if is_flat else {"exactly": wish})}

    @property
    def resource_version(self) -> str:
        return self.resource_api.rpartition("/")[2]

    def resource_path(self, resource: str, namespace: str = TENANT) -> str:
        return f"{self.resource_api}/namespaces/{namespace}/{resource}"


def install(server: ApiServer, helm: str) -> Installation:
    """Install the charts, and wait until their policies are enforced."""
    admin = User(server, server.token)
    for name in (NAMESPACE, TENANT, "old"):
        admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    is_admins = {"resource.kubernetes.io/admin-access": "true"}
    admin.create("/api/v1/namespaces", {"metadata": {"name": "admins", "labels": is_admins}})
    for name in (NODE, OTHER_NODE):
        server.create("/api/v1/nodes", {"metadata": {"name": name}})
    domain_objects.install_crds(server)
    objects = _rendered(server, helm)
    for (kind, _), obj in objects.items():
        for hook in obj.get("webhooks", ()):  # no process answers them here
            hook["objectSelector"] = {"matchLabels": {"is-asked-about": "true"}}
        if kind in _PATHS:
            made = admin.create(_PATHS[kind], obj)
            assert made.status == 201, made.text
    accounts = (GPU_PLUGIN, CONTROLLER, WEBHOOK)
    plugin, controller, webhook = (
        User(server, pod_tokens.token(server, NAMESPACE, name, NODE)) for name in accounts
    )
    _grant_everything(server, accounts)
    preferred = server.request("GET", "/apis/resource.k8s.io")["preferredVersion"]
    version = preferred["groupVersion"]
    found = Installation(server, admin, plugin, controller, webhook, objects, f"/apis/{version}")
    _wait_enforced(found)
    return found


def stranger(kind: str) -> Json:
    """Any Deployment or DaemonSet of the namespace, such as another component of the driver."""
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "stranger", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    }


def foreign_network_policy() -> Json:
    """A NetworkPolicy of an administrator, for another component of the driver."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "stranger", "namespace": NAMESPACE},
        "spec": {"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Ingress"]},
    }


def allocated_claim(found: Installation, name: str) -> str:
    """Create a tenant's claim with a device of each node, and one of another driver.

    Returns:
        Its path.
    """
    claims = found.resource_path("resourceclaims")
    spec = {"devices": {"requests": [found.request()]}}
    body = {
        "apiVersion": f"resource.k8s.io/{found.resource_version}",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": TENANT},
        "spec": spec,
    }
    stored = found.server.create(claims, body)
    devices = (
        ("gpu.nvidia.com", NODE),
        ("gpu.nvidia.com", OTHER_NODE),
        ("other.example.com", NODE),
    )
    stored["status"] = {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "gpu", "driver": driver, "pool": pool, "device": "gpu-0"}
                    for driver, pool in devices
                ]
            },
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
                ]
            },
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
    }
    answer = found.admin.send("PUT", f"{claims}/{name}/status", stored)
    assert answer.status == 200, answer.text
    return f"{claims}/{name}"


def delete_claim(found: Installation, path: str) -> None:
    """Delete a claim that `allocated_claim` has made."""
    found.admin.merge(f"{path}/status", {"status": {"reservedFor": None}})
    assert found.admin.send("DELETE", path).status == 200


def _rendered(server: ApiServer, helm: str) -> dict[tuple[str, str], Json]:
    argv = [helm, "template", "nvdra", str(folder("nvdra")), "--namespace", NAMESPACE]
    done = subprocess.run(
        [*argv, "--kubeconfig", str(server.kubeconfig), "--validate", "--no-hooks", "-f", "-"],
        input=json.dumps(VALUES),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = filter(None, yaml_documents.load_all(done.stdout))
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in found}


def _grant_everything(server: ApiServer, accounts: tuple[str, ...]) -> None:
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "everything"},
        "subjects": [
            {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE} for name in accounts
        ],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
    }
    server.create(f"/apis/{group}/v1/clusterrolebindings", binding)


def _wait_enforced(found: Installation) -> None:
    """Wait until the API server has refused something by each policy."""
    domain = {"apiVersion": "resource.nvidia.com/v1beta1", **domain_values.domain_json()}
    domain["metadata"] = {"name": "ring", "namespace": TENANT}
    domains = f"/apis/resource.nvidia.com/v1beta1/namespaces/{TENANT}/computedomains"
    claim = allocated_claim(found, "first")
    deadline = time.monotonic() + _ENFORCED_S
    while found.admin.create(domains, domain).status == 404:
        assert time.monotonic() < deadline, "the definition of ComputeDomains is not served"
        time.sleep(0.2)
    dry = "?dryRun=All"
    asked: list[Callable[[], Answer]] = [
        lambda: found.plugin.try_create(DEPLOYMENTS, stranger("Deployment")),
        lambda: found.plugin.merge(f"{claim}/status{dry}", {"status": {"reservedFor": None}}),
        lambda: found.controller.try_create(DAEMONSETS, stranger("DaemonSet")),
        lambda: found.controller.try_create(NETWORK_POLICIES, foreign_network_policy()),
        lambda: found.controller.try_create(
            found.resource_path("resourceclaimtemplates"), found.template_of_a_tenant()
        ),
        lambda: found.controller.merge(
            f"{domains}/ring{dry}", {"metadata": {"labels": {"a": "b"}}}
        ),
        lambda: found.webhook.merge(f"{WEBHOOKS}/{WEBHOOK}-config{dry}", {"webhooks": []}),
    ]
    for ask in asked:
        while "ValidatingAdmissionPolicy" not in (answer := ask()).text:
            assert time.monotonic() < deadline, f"a policy has never refused anything: {answer}"
            time.sleep(0.2)
    assert found.admin.send("DELETE", f"{domains}/ring").status == 200
    delete_claim(found, claim)
