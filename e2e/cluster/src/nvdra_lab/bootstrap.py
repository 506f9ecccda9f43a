"""What a new cluster needs from its administrator before anything else. Pure: a manifest."""

from nvdra_lab.model import Lab
from nvdra_lab.pki import KUBELET_CLIENT


def manifest(lab: Lab) -> str:
    """The first objects of a lab, as YAML.

    The API server reaches kubelets (logs, exec, port-forward) under a name of its own; the role for
    that is built in. Pods ask the Service kube-dns for names: nobody serves it, so the question is
    refused at once instead of waited out, until somebody installs a DNS behind it.
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
