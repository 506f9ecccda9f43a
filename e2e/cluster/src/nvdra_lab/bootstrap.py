"""What a new cluster needs from its administrator before anything else. Pure: a manifest."""

from nvdra_lab.pki import KUBELET_CLIENT

# The API server reaches kubelets (logs, exec, port-forward) as this user; the role is built in.
MANIFEST = f"""\
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
"""
