# SPDX-License-Identifier: Apache-2.0
"""The identities of a lab: every certificate, key and kubeconfig, as files of each machine.

Paths are those inside the machine, as kubeadm uses them. `files` writes them.
"""

import dataclasses
import datetime

from nvdra_lab.kubernetes import kubeconfig
from nvdra_lab.kubernetes.certificates import Authority, KeyPair, signing_key
from nvdra_lab.layout import CONTROL_PLANE
from nvdra_lab.model import Lab, Node

PKI = "/etc/kubernetes/pki"
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
COMPONENTS = ("kube-controller-manager", "kube-scheduler", "kube-proxy")


@dataclasses.dataclass(frozen=True)
class Identities:
    """The files by machine and path inside it, and the administrator's kubeconfig for the host."""

    files: dict[str, dict[str, bytes]]
    admin_kubeconfig: str


def create_identities(lab: Lab, now: datetime.datetime) -> Identities:
    """Create authorities and everything that they sign for this lab."""
    cluster = Authority("kubernetes", now)
    files = {CONTROL_PLANE: _control_plane(lab, cluster, now)}
    for node in lab.nodes:
        files[node.name] = _node(lab, cluster, node)
    admin = _kubeconfig(lab, cluster, "admin", cluster.client("admin", ["system:masters"]))
    return Identities(files, admin.decode())


def _control_plane(lab: Lab, cluster: Authority, now: datetime.datetime) -> dict[str, bytes]:
    network = lab.network
    etcd, front_proxy = Authority("etcd", now), Authority("front-proxy", now)
    pairs = {
        "ca": cluster.pair,
        "sa": signing_key(),
        "apiserver": cluster.server(
            "kube-apiserver",
            [
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
                "localhost",
                "127.0.0.1",
                network.address,
                network.kubernetes_service,
            ],
        ),
        "apiserver-kubelet-client": cluster.client(KUBELET_CLIENT),
        "apiserver-etcd-client": etcd.client("kube-apiserver"),
        "front-proxy-ca": front_proxy.pair,
        "front-proxy-client": front_proxy.client("front-proxy-client"),
        "etcd/ca": etcd.pair,
        "etcd/server": etcd.peer("etcd", ["localhost", "127.0.0.1"]),
    }
    files: dict[str, bytes] = {}
    for name, pair in pairs.items():
        files |= _pair_files(name, pair)
    for component in COMPONENTS:
        pair = cluster.client(f"system:{component}")
        files[f"/etc/kubernetes/{component}.conf"] = _kubeconfig(lab, cluster, component, pair)
    return files


def _node(lab: Lab, cluster: Authority, node: Node) -> dict[str, bytes]:
    user = f"system:node:{node.name}"
    client = cluster.client(user, ["system:nodes"])
    serving = cluster.server(user, [node.name, *node.addresses], ["system:nodes"])
    return {
        "/etc/kubernetes/kubelet.conf": _kubeconfig(lab, cluster, "kubelet", client),
        f"{PKI}/ca.crt": cluster.pair.certificate,
        **_pair_files("kubelet", serving),
    }


def _pair_files(name: str, pair: KeyPair) -> dict[str, bytes]:
    public = "pub" if name == "sa" else "crt"
    return {f"{PKI}/{name}.{public}": pair.certificate, f"{PKI}/{name}.key": pair.key}


def _kubeconfig(lab: Lab, cluster: Authority, user: str, pair: KeyPair) -> bytes:
    name = f"nvdra-lab-{lab.name}"
    text = kubeconfig.render(name, lab.api_server, cluster.pair.certificate, user, pair)
    return text.encode()
