# SPDX-License-Identifier: Apache-2.0
"""The text of a kubeconfig."""

import base64

import yaml

from nvdra_lab.kubernetes.certificates import KeyPair


def render(cluster: str, server: str, authority: bytes, user: str, pair: KeyPair) -> str:
    """A kubeconfig that contains its certificates, so that the file can be moved."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": cluster,
                    "cluster": {"server": server, "certificate-authority-data": _base64(authority)},
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": _base64(pair.certificate),
                        "client-key-data": _base64(pair.key),
                    },
                }
            ],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
            "current-context": cluster,
        },
        sort_keys=False,
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
