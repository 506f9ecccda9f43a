# SPDX-License-Identifier: Apache-2.0
"""The objects that an administrator creates first in a new cluster."""

from nvdra_lab.kubernetes.pki import KUBELET_CLIENT
from nvdra_lab.model import Lab


def manifest(lab: Lab) -> str:
    """The first objects of a lab, as YAML.

    The API server calls kubelets (logs, exec, port-forward) with its own identity, whose role is
    built
    in. Pods send DNS queries to the Service kube-dns. Without a DNS server behind it the queries
    fail at
    once instead of timing out.
    """
    return f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: nvdra-lab:kubelet-api
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: system:kubelet-api-admin
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: User
  name: {KUBELET_CLIENT}
---
apiVersion: v1
kind: Service
metadata:
  name: kube-dns
  namespace: kube-system
spec:
  clusterIP: {lab.network.dns_service}
  ports:
  - {{name: dns, port: 53, protocol: UDP}}
  - {{name: dns-tcp, port: 53, protocol: TCP}}
"""
