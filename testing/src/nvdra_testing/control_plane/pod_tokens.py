# SPDX-License-Identifier: Apache-2.0
"""Tokens of pods, as the kubelet gets them, and requests with one."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from nvdra_testing.control_plane.apiserver import ApiServer

Json = dict[str, Any]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True)
class Answer:
    """What the API server has answered."""

    status: int
    body: Json

    @property
    def text(self) -> str:
        return str(self.body.get("message", ""))


@dataclass(frozen=True)
class User:
    """A user who has a token, and no other credential."""

    server: ApiServer
    token: str

    def send(
        self, method: str, path: str, body: Json | None = None, content_type: str = JSON
    ) -> Answer:
        """Send exactly one request."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type}
        # Compact like the server's own form: it compares embedded documents byte by byte.
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        asked = urllib.request.Request(self.server.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(
                asked, context=self.server.ssl_context(), timeout=30
            ) as answer:
                return Answer(answer.status, json.loads(answer.read()))
        except urllib.error.HTTPError as refused:
            with refused:
                return Answer(refused.code, json.loads(refused.read()))

    def create(self, path: str, body: Json) -> Answer:
        return self.send("POST", path, body)

    def try_create(self, path: str, body: Json) -> Answer:
        """Ask for everything but the storing."""
        return self.send("POST", f"{path}?dryRun=All", body)

    def merge(self, path: str, change: Json) -> Answer:
        return self.send("PATCH", path, change, MERGE_PATCH)


def token(server: ApiServer, namespace: str, account: str, node: str = "") -> str:
    """A token of a service account, which is created if it is missing.

    Args:
        server: The API server.
        namespace: The account's.
        account: Its name.
        node: Where the pod runs to which the token is bound; empty for a token of no pod.
    """
    core = f"/api/v1/namespaces/{namespace}"
    admin = User(server, server.token)
    admin.create(f"{core}/serviceaccounts", {"metadata": {"name": account}})
    asked: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    if node:
        name = f"{account}-{node}"
        container = {"name": "c", "image": "i"}
        spec = {"nodeName": node, "serviceAccountName": account, "containers": [container]}
        pod = server.create(f"{core}/pods", {"metadata": {"name": name}, "spec": spec})
        uid = pod["metadata"]["uid"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
        asked["spec"]["boundObjectRef"] = bound
    made = server.create(f"{core}/serviceaccounts/{account}/token", asked)
    return str(made["status"]["token"])
