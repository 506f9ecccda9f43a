# SPDX-License-Identifier: Apache-2.0
"""The control plane as a machine: its processes, their flags and their order."""

from collections.abc import Mapping
from typing import Any

import yaml

from nvdra_lab import layout, versions
from nvdra_lab.kubernetes.pki import PKI
from nvdra_lab.kubernetes.platforms import ADMISSION_FILE, PLATFORMS, admission_configuration
from nvdra_lab.layout import CONTROL_PLANE, MachineDir
from nvdra_lab.machines.machine_spec import (
    Bind,
    Cgroup,
    Machine,
    Overlay,
    Start,
    Step,
    WaitHTTPS,
    WaitPort,
)
from nvdra_lab.model import API_PORT, Lab

ETCD_PORT = 2379
ETCD = f"https://127.0.0.1:{ETCD_PORT}"
START_TIMEOUT_S = 60.0
AUDIT_POLICY = "/etc/kubernetes/audit-policy.yaml"
AUDIT_LOG = "/var/lib/kube-apiserver/audit.log"


def machine(
    lab: Lab, folder: MachineDir, programs: Mapping[str, str], environment: Mapping[str, str]
) -> Machine:
    """The control plane's machine.

    Args:
        lab: The lab.
        folder: The machine's folder on the host.
        programs: Program name → path.
        environment: Of every process in it.
    """
    steps: list[Step] = [
        Cgroup(layout.cgroup(lab.name, CONTROL_PLANE)),
        Overlay("/etc", str(folder.etc), str(folder.etc_work)),
        Bind(str(folder.run), "/run"),
        Bind(str(folder.var_lib), "/var/lib"),  # last: it hides the sources of the other mounts
        Start("etcd", (programs["etcd"], *etcd_flags())),
        WaitPort("etcd", ETCD_PORT, START_TIMEOUT_S),
        Start("kube-apiserver", (programs["kube-apiserver"], *apiserver_flags(lab))),
        ready(lab, "kube-apiserver"),
        Start("kube-controller-manager", (programs["kube-controller-manager"], *kcm_flags(lab))),
        Start("kube-scheduler", (programs["kube-scheduler"], *scheduler_flags(lab))),
        Start("kube-proxy", (programs["kube-proxy"], *proxy_flags(lab))),
    ]
    return Machine(CONTROL_PLANE, dict(environment), tuple(steps))


def files(lab: Lab) -> dict[str, bytes]:
    """The files of the control plane besides its identities."""
    found = {}
    if plugins := PLATFORMS[lab.platform].admission:
        found[ADMISSION_FILE] = admission_configuration(plugins)
    if lab.has_audit_log:
        found[AUDIT_POLICY] = yaml.safe_dump(_audit_policy(), sort_keys=False).encode()
    return found


def _audit_policy() -> dict[str, Any]:
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    }


def ready(lab: Lab, name: str) -> WaitHTTPS:
    """A step that ends when the API server serves and has its own roles.

    Anonymous users may read /readyz only with the default roles, so one GET checks both.
    """
    return WaitHTTPS(name, f"{lab.api_server}/readyz", f"{PKI}/ca.crt", START_TIMEOUT_S)


def etcd_flags() -> tuple[str, ...]:
    """One member, TLS on both sides, every write synced to disk (etcd's default)."""
    return (
        "--name=lab",
        "--data-dir=/var/lib/etcd",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=lab=http://127.0.0.1:2380",
        f"--cert-file={PKI}/etcd/server.crt",
        f"--key-file={PKI}/etcd/server.key",
        f"--trusted-ca-file={PKI}/etcd/ca.crt",
        "--client-cert-auth=true",
    )


def apiserver_flags(lab: Lab) -> tuple[str, ...]:
    """Node and RBAC authorization, NodeRestriction, bound tokens, and verification of kubelets.

    `--kubelet-preferred-address-types`: node names cannot be resolved, so exec and logs need
    addresses.
    """
    network = lab.network
    return (
        f"--advertise-address={network.address}",
        "--bind-address=0.0.0.0",
        f"--secure-port={API_PORT}",
        f"--service-cluster-ip-range={network.service_cidr}",
        f"--etcd-servers={ETCD}",
        f"--etcd-cafile={PKI}/etcd/ca.crt",
        f"--etcd-certfile={PKI}/apiserver-etcd-client.crt",
        f"--etcd-keyfile={PKI}/apiserver-etcd-client.key",
        f"--tls-cert-file={PKI}/apiserver.crt",
        f"--tls-private-key-file={PKI}/apiserver.key",
        f"--client-ca-file={PKI}/ca.crt",
        f"--kubelet-certificate-authority={PKI}/ca.crt",
        f"--kubelet-client-certificate={PKI}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={PKI}/apiserver-kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={PKI}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={PKI}/front-proxy-client.crt",
        f"--proxy-client-key-file={PKI}/front-proxy-client.key",
        f"--service-account-key-file={PKI}/sa.pub",
        f"--service-account-signing-key-file={PKI}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        *_audit_flags(lab),
        *_admission_flags(lab),
        *_runtime_config(lab),
        *gates(lab),
    )


def kcm_flags(lab: Lab) -> tuple[str, ...]:
    """Each controller uses its own service account; certificates are signed by our CA.

    The default volume plugin directory is in /usr, which belongs to the host.
    """
    return (
        *_kubeconfigs("kube-controller-manager"),
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={PKI}/sa.key",
        f"--root-ca-file={PKI}/ca.crt",
        f"--cluster-signing-cert-file={PKI}/ca.crt",
        f"--cluster-signing-key-file={PKI}/ca.key",
        "--kube-api-qps=200",  # with the default of 20 its controllers take 4 s to start
        "--kube-api-burst=400",
        "--node-monitor-period=1s",  # a node whose first report is missed waits for the next one
        "--flex-volume-plugin-dir=/var/lib/kubelet/volumeplugins",
        *gates(lab),
    )


def scheduler_flags(lab: Lab) -> tuple[str, ...]:
    """The default scheduler, without leader election."""
    return (
        *_kubeconfigs("kube-scheduler"),
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        *gates(lab),
    )


def proxy_flags(lab: Lab) -> tuple[str, ...]:
    """One proxy for the network that all nodes share.

    The three conntrack settings belong to the whole machine and are not changed.
    """
    return (
        "--kubeconfig=/etc/kubernetes/kube-proxy.conf",
        "--proxy-mode=iptables",
        f"--hostname-override={lab.nodes[0].name}",
        f"--cluster-cidr={lab.network.pod_cidr}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--iptables-min-sync-period=100ms",
        *gates(lab),
    )


def _kubeconfigs(component: str) -> tuple[str, ...]:
    path = f"/etc/kubernetes/{component}.conf"
    return (
        f"--kubeconfig={path}",
        f"--authentication-kubeconfig={path}",
        f"--authorization-kubeconfig={path}",
        f"--client-ca-file={PKI}/ca.crt",
    )


def gates(lab: Lab) -> tuple[str, ...]:
    """The flag that sets the lab's feature gates, if it sets any."""
    return (f"--feature-gates={versions.as_text(lab.gates)}",) if lab.gates else ()


def _admission_flags(lab: Lab) -> tuple[str, ...]:
    has_file = bool(PLATFORMS[lab.platform].admission)
    return (f"--admission-control-config-file={ADMISSION_FILE}",) if has_file else ()


def _audit_flags(lab: Lab) -> tuple[str, ...]:
    """One file without rotation: a reader needs all of it, and it goes with the lab."""
    if not lab.has_audit_log:
        return ()
    return (
        f"--audit-policy-file={AUDIT_POLICY}",
        f"--audit-log-path={AUDIT_LOG}",
        "--audit-log-maxsize=10000",
    )


def _runtime_config(lab: Lab) -> tuple[str, ...]:
    served = versions.runtime_config(lab.kubernetes, lab.gates)
    settings = ",".join(f"{version}=true" for version in served)
    return (f"--runtime-config={settings}",) if served else ()
