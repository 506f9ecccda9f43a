# SPDX-License-Identifier: Apache-2.0
"""The platforms that a lab can be like: what they do otherwise than a cluster of one's own.

A further platform is a further row of `PLATFORMS`, and one of docs/platforms.md.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import yaml
from nvdra_sim.description import Layout
from nvdra_sim.filesystem.driver_root import BINARIES, LIBRARIES

from nvdra_lab.model import DRIVER_ROOT
from nvdra_lab.versions import DEFAULT_RUNTIME

ADMISSION_FILE = "/etc/kubernetes/admission.yaml"
KUBELET_ROOT = "/var/lib/kubelet"
WHOLE: Mapping[str, str] = {".": "."}
"""A driver's root that looks as a distribution's: programs have their C library in it."""


def _installed(layout: Layout) -> Mapping[str, str]:
    """The driver's own files alone. The firmware has the state of the simulation."""
    return {
        LIBRARIES["debian"]: LIBRARIES[layout],
        BINARIES["debian"]: BINARIES[layout],
        "lib/firmware": "lib/firmware",
    }


@dataclasses.dataclass(frozen=True)
class Platform:
    """What is otherwise.

    Attributes:
        name: What `--like` takes; empty for none.
        about: What it does otherwise, in a few words.
        driver_root: Where the driver's files are found as well.
        driver_files: Directories of a lab's driver and where `driver_root` has them.
        read_only: Directories in which nothing can be written.
        kubelet_root: The directory of the kubelet.
        runtime: The container runtime.
        admission: The settings of the API server's admission plugins, by plugin.
    """

    name: str = ""
    about: str = ""
    driver_root: str = DRIVER_ROOT
    driver_files: Mapping[str, str] = dataclasses.field(default_factory=lambda: WHOLE)
    read_only: tuple[str, ...] = ()
    kubelet_root: str = KUBELET_ROOT
    runtime: str = DEFAULT_RUNTIME
    admission: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def overlaid(self) -> str | None:
        """The host's directory in which the driver's root is.

        None if the root is where every lab has it, in a directory of the node's own.
        """
        if self.driver_root == DRIVER_ROOT:
            return None
        return f"/{PurePosixPath(self.driver_root).parts[1]}"


LIMITED_PRIORITIES: Mapping[str, Any] = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "ResourceQuotaConfiguration",
    "limitedResources": [
        {
            "resource": "pods",
            "matchScopes": [
                {
                    "scopeName": "PriorityClass",
                    "operator": "In",
                    "values": ["system-node-critical", "system-cluster-critical"],
                }
            ],
        }
    ],
}
"""The priority classes of the system are for namespaces with a quota for them.

Source: https://kubernetes.io/docs/concepts/policy/resource-quotas/, "Limit Priority Class
consumption by default".
"""
BASELINE: Mapping[str, Any] = {
    "apiVersion": "pod-security.admission.config.k8s.io/v1",
    "kind": "PodSecurityConfiguration",
    "defaults": {"enforce": "baseline", "enforce-version": "latest"},
    "exemptions": {"namespaces": ["kube-system"]},
}
"""Namespaces without labels of their own enforce this level, as with Talos."""

PLATFORMS: Mapping[str, Platform] = {
    platform.name: platform
    for platform in (
        Platform(),
        Platform(
            "gke",
            "the driver in /home/kubernetes/bin/nvidia, a quota for priority classes",
            driver_root="/home/kubernetes/bin/nvidia",
            driver_files=_installed("cos"),
            admission={"ResourceQuota": LIMITED_PRIORITIES},
        ),
        Platform(
            "gke-ubuntu",
            "the driver in /opt/nvidia, a quota for priority classes",
            driver_root="/opt/nvidia",
            admission={"ResourceQuota": LIMITED_PRIORITIES},
        ),
        Platform("k0s", "the kubelet in /var/lib/k0s/kubelet", kubelet_root="/var/lib/k0s/kubelet"),
        Platform(
            "talos",
            "the driver in /usr/local, /usr and /etc read-only, Pod Security baseline",
            driver_root="/usr/local",  # as a system extension, beside others
            driver_files=_installed("talos"),
            read_only=("/usr", "/etc"),
            admission={"PodSecurity": BASELINE},
        ),
        Platform("openshift", "CRI-O as the container runtime", runtime="cri-o"),
    )
}


def admission_configuration(plugins: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The file of the API server's flag `--admission-control-config-file`."""
    configuration = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [
            {"name": name, "configuration": dict(settings)} for name, settings in plugins.items()
        ],
    }
    return yaml.safe_dump(configuration, sort_keys=False).encode()
