# SPDX-License-Identifier: Apache-2.0
"""The values of the reference's chart, each with its default and its rule. Pure.

A list, and a map whose keys the user chooses, is one value. State: chart 0.5, August 2026.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from nvdra_migrate import chart_variables, rules
from nvdra_migrate.rules import CD, CONTROLLER, GPU, Rule


class ReferenceValue(NamedTuple):
    """A value of the reference's chart.

    Attributes:
        default: Its default there.
        rule: What becomes of any other value.
        instead: What the chart nvdra does where the default is another one there. Empty if both do
            the same.
    """

    default: Any
    rule: Rule
    instead: str = ""


def _each(key: str) -> tuple[str, ...]:
    return tuple(f"{component}.{key}" for component in rules.COMPONENTS)


def _plugins(key: str) -> tuple[str, str]:
    return f"{GPU}.kubeletPlugin.{key}", f"{CD}.kubeletPlugin.{key}"


def _controller(key: str) -> str:
    return f"{CONTROLLER}.controller.{key}"


def _webhook(defaults: Mapping[str, Any], prefix: str = "webhook") -> dict[str, ReferenceValue]:
    """The webhook's values have the same place in both charts."""
    found: dict[str, ReferenceValue] = {}
    for key, default in defaults.items():
        path = f"{prefix}.{key}"
        if isinstance(default, dict) and default and key not in ("securityContext", "strategy"):
            found |= _webhook(default, path)
        else:
            rule = rules.switch(path) if isinstance(default, bool) else rules.copied(path)
            found[path] = ReferenceValue(default, rule)
    return found


_LABELS: Final = (
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/cpu-model.vendor_id",
    "nvidia.com/gpu.present",
)
_PLUGIN_AFFINITY: Final = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {
                            "key": label,
                            "operator": "In",
                            "values": ["NVIDIA" if label.endswith("vendor_id") else "true"],
                        }
                    ]
                }
                for label in _LABELS
            ]
        }
    }
}
_CONTROLLER_TOLERATIONS: Final = [
    {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "node-role.kubernetes.io/master", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "CriticalAddonsOnly", "operator": "Exists"},
]
_PREFERENCE: Final = {
    "weight": 100,
    "preference": {
        "matchExpressions": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]
    },
}
_SPREAD: Final = {
    "weight": 100,
    "podAffinityTerm": {
        "labelSelector": {"matchLabels": {"dra-driver-nvidia-gpu-component": "controller"}},
        "topologyKey": "kubernetes.io/hostname",
    },
}
_CONTROLLER_AFFINITY: Final = {
    "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_PREFERENCE]},
    "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_SPREAD]},
}
_WEBHOOK: Final = {
    "enabled": False,
    "replicas": 1,
    "servicePort": 443,
    "containerPort": 443,
    "priorityClassName": "system-cluster-critical",
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
    "podAnnotations": {},
    "podSecurityContext": {},
    "nodeSelector": {},
    "affinity": {},
    "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
    "containers": {"webhook": {"securityContext": {"privileged": False}, "resources": {}}},
    "serviceAccount": {"create": True, "name": "", "annotations": {}},
    "failurePolicy": "Fail",
    "tls": {
        "mode": "cert-manager",
        "certManager": {"issuerType": "selfsigned", "issuerName": "", "dnsNames": []},
        "secret": {"name": "", "caBundle": ""},
    },
}
_INIT: Final = rules.obsolete("that chart ignores it too; nvdra has no init container")

_OWN: Final[Mapping[str, tuple[Any, Rule] | tuple[Any, Rule, str]]] = {
    "nvidiaDriverRoot": ("/", rules.copied("global.nvidiaDriverRoot")),
    "nvidiaCDIHookPath": ("", rules.copied("global.nvidiaCDIHookPath")),
    "altProcDevices": (
        "",
        rules.absent(
            "it replaces one file of procfs; nvdra is told where the whole procfs is",
            "set global.procRoot to a directory with that file as devices, if you simulate",
        ),
    ),
    "nameOverride": ("", rules.names("nameOverride")),
    "fullnameOverride": ("", rules.names("fullnameOverride")),
    "namespaceOverride": (
        "",
        rules.copied(*_each("namespaceOverride"), "webhook.namespaceOverride"),
    ),
    "selectorLabelsOverride": (
        {},
        rules.absent(
            "selectors are app.kubernetes.io/name and app.kubernetes.io/instance, so that no "
            "component selects another one's pods",
            "select pods by these labels",
        ),
    ),
    "gpuResourcesEnabledOverride": (False, rules.switch("gpuResourcesEnabledOverride")),
    "consumableShares": ("", rules.copied(f"{GPU}.kubeletPlugin.consumableShares")),
    "allowDefaultNamespace": (False, rules.switch("global.allowDefaultNamespace")),
    "resourceApiVersion": ("", rules.copied("global.resourceApiVersion")),
    "imagePullSecrets": ([], rules.copied("global.imagePullSecrets")),
    "image.repository": (
        "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu",
        rules.repository,
        "each program of nvdra has its own image; see global.imageRegistry",
    ),
    "image.pullPolicy": ("IfNotPresent", rules.copied("global.imagePullPolicy")),
    "image.tag": (
        "",
        rules.absent(
            "it is a version of the reference driver", "leave it out: the chart's own version"
        ),
    ),
    "serviceAccount.create": (True, rules.account),
    "serviceAccount.annotations": ({}, rules.copied(*_each("serviceAccount.annotations"))),
    "serviceAccount.name": ("", rules.account),
    "featureGates": ({}, rules.feature_gates),
    "logVerbosity": ("4", rules.copied("global.logVerbosity")),
    "maskNvidiaDriverParams": (
        False,
        rules.absent(
            "this release of nvdra cannot mask the driver's parameters (nvkind needs it)",
            "keep the reference driver in such clusters",
        ),
    ),
    "namespace": ("", rules.absent("that chart refuses it too", "use helm's --namespace")),
    "nvidiaCtkPath": (
        "",
        rules.absent("that chart refuses it too", "set global.nvidiaCDIHookPath"),
    ),
    "resources.gpus.enabled": (True, rules.switch("resources.gpus.enabled")),
    "resources.computeDomains.enabled": (
        True,
        rules.switch("resources.computeDomains.enabled"),
    ),
    "resources.computeDomains.imex.mode": (
        "driverManaged",
        rules.one_of(
            "global.imex.mode",
            "driverManaged",
            "hostManaged",
            remedy="set global.imex.mode to driverManaged or hostManaged",
        ),
    ),
    "resources.computeDomains.imex.isolation": (
        "domain",
        rules.one_of(
            "global.imex.isolation",
            "",
            "domain",
            remedy="leave it out: neither driver isolates by channel yet",
        ),
    ),
    "resources.computeDomains.imex.hostSocketPath": (
        "/etc/nvidia-imex/imex_ctrl.sock",
        rules.copied("global.imex.hostSocketPath"),
    ),
    "controller.replicas": (1, rules.count(_controller("replicas"))),
    "controller.leaderElection.enabled": (
        False,
        rules.obsolete("there is always an election, because two controllers run during a rollout"),
    ),
    **{
        f"controller.leaderElection.{key}": (
            default,
            rules.copied(_controller(f"leaderElection.{key}")),
        )
        for key, default in {
            "leaseDuration": "15s",
            "renewDeadline": "10s",
            "retryPeriod": "2s",
        }.items()
    },
    "controller.metrics.enabled": (True, rules.switch(_controller("metrics.enabled"))),
    "controller.metrics.httpEndpoint": (
        ":8080",
        rules.address(_controller("metrics.httpEndpoint")),
    ),
    "controller.metrics.metricsPath": (
        "/metrics",
        rules.copied(_controller("metrics.metricsPath")),
    ),
    "controller.metrics.profilePath": (
        "",
        rules.absent(
            "there is no profiling of Go here",
            "use the debug endpoint, port 6060 of the pod's loopback interface",
        ),
    ),
    "controller.priorityClassName": (
        "system-node-critical",
        rules.copied(_controller("priorityClassName")),
        "system-cluster-critical, because the controller is bound to no node",
    ),
    "controller.podAnnotations": ({}, rules.copied(_controller("podAnnotations"))),
    "controller.podSecurityContext": (
        {},
        rules.copied(_controller("podSecurityContext")),
        "the controller does not run as root",
    ),
    "controller.nodeSelector": ({}, rules.copied(_controller("nodeSelector"))),
    "controller.tolerations": (
        _CONTROLLER_TOLERATIONS,
        rules.copied(_controller("tolerations")),
        "control plane, and 15 s of a lost node",
    ),
    "controller.containers.computeDomain.securityContext": (
        {},
        rules.copied(_controller("securityContext")),
        "no privileges, a read-only root file system",
    ),
    "controller.containers.computeDomain.env": (
        [],
        rules.environment(
            _controller("env"),
            chart_variables.CONTROLLER,
            {
                "ADDITIONAL_NAMESPACES": rules.list_in_text("global.additionalNamespaces"),
                "MAX_NODES_PER_IMEX_DOMAIN": rules.number_in_text(
                    _controller("maxNodesPerImexDomain")
                ),
            },
        ),
    ),
    "controller.containers.computeDomain.resources": (
        {},
        rules.copied(_controller("resources")),
    ),
    "controller.affinity": (
        _CONTROLLER_AFFINITY,
        rules.affinity(_controller("affinity")),
        "nodes of the control plane are preferred as there",
    ),
    "controller.networkPolicy.enabled": (
        False,
        rules.switch(_controller("networkPolicy.enabled")),
    ),
    "kubeletPlugin.metrics.enabled": (True, rules.switch(*_plugins("metrics.enabled"))),
    "kubeletPlugin.metrics.gpuHttpEndpoint": (
        ":8080",
        rules.address(f"{GPU}.kubeletPlugin.metrics.gpuHttpEndpoint"),
    ),
    "kubeletPlugin.metrics.computeDomainHttpEndpoint": (
        ":8081",
        rules.address(f"{CD}.kubeletPlugin.metrics.computeDomainHttpEndpoint"),
    ),
    "kubeletPlugin.metrics.metricsPath": (
        "/metrics",
        rules.copied(*_plugins("metrics.metricsPath")),
    ),
    "kubeletPlugin.priorityClassName": (
        "system-node-critical",
        rules.copied(*_plugins("priorityClassName")),
    ),
    "kubeletPlugin.updateStrategy": (
        {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
        rules.copied(*_plugins("updateStrategy")),
        "on 10 % of the nodes at a time, the new plugin beside the old one",
    ),
    "kubeletPlugin.podAnnotations": ({}, rules.copied(*_plugins("podAnnotations"))),
    "kubeletPlugin.podSecurityContext": ({}, rules.copied(*_plugins("podSecurityContext"))),
    "kubeletPlugin.nodeSelector": ({}, rules.copied(*_plugins("nodeSelector"))),
    "kubeletPlugin.tolerations": (
        [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        rules.copied(*_plugins("tolerations")),
    ),
    "kubeletPlugin.kubeletRegistrarDirectoryPath": (
        "/var/lib/kubelet/plugins_registry",
        rules.copied(*_plugins("kubeletRegistrarDirectoryPath")),
    ),
    "kubeletPlugin.kubeletPluginsDirectoryPath": (
        "/var/lib/kubelet/plugins",
        rules.copied(*_plugins("kubeletPluginsDirectoryPath")),
    ),
    "kubeletPlugin.containers.init.securityContext": ({}, _INIT),
    "kubeletPlugin.containers.init.resources": ({}, _INIT),
    **{
        f"kubeletPlugin.containers.{container}.{key}": (default, rule)
        for container, chart, own, http, port in (
            ("computeDomains", CD, chart_variables.CD_PLUGIN, "computeDomain", 51515),
            ("gpus", GPU, chart_variables.GPU_PLUGIN, "gpu", 51516),
        )
        for place in [f"{chart}.kubeletPlugin.containers.{container}"]
        for key, default, rule in (
            ("env", [], rules.environment(f"{place}.env", own)),
            ("securityContext", {"privileged": True}, rules.copied(f"{place}.securityContext")),
            ("resources", {}, rules.copied(f"{place}.resources")),
            (
                "healthcheckPort",
                port,
                rules.health_port(f"{chart}.kubeletPlugin.metrics.{http}HttpEndpoint"),
            ),
        )
    },
    "kubeletPlugin.containers.computeDomains.gpuCliqueLabelEnabled": (
        False,
        rules.switch(f"{CD}.kubeletPlugin.containers.computeDomains.gpuCliqueLabelEnabled"),
    ),
    "kubeletPlugin.affinity": (_PLUGIN_AFFINITY, rules.affinity(*_plugins("affinity"))),
    "kubeletPlugin.networkPolicy.enabled": (
        False,
        rules.switch(*_plugins("networkPolicy.enabled")),
    ),
}

REFERENCE_VALUES: Final[Mapping[str, ReferenceValue]] = {
    **{path: ReferenceValue(*value) for path, value in _OWN.items()},
    **_webhook(_WEBHOOK),
}
