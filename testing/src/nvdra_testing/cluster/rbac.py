# SPDX-License-Identifier: Apache-2.0
"""The rights of accounts: by the roles of an installation, and by what the API server allows.

One request is sent for each verb of each resource that the API server serves. Authorization comes
before everything else, so that the objects need not exist and the bodies may be empty. A denial is
recognised by its message.
"""

import base64
import contextlib
import http.client
import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from nvdra_testing import yaml_documents
from nvdra_testing.cluster.kubectl import Kubectl

MISSING_NAME = "nobody-has-this-name"
CONCURRENCY = 4
METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
_ON_COLLECTIONS = ("list", "watch", "create", "deletecollection")
_QUERIES = {
    "watch": "?watch=1&timeoutSeconds=1",
    "deletecollection": f"?dryRun=All&labelSelector={MISSING_NAME}",
}
_NONE: Sequence[str] = ()
_ALL_ACCOUNTS = frozenset({"system:authenticated", "system:serviceaccounts"})
"""Groups of which every account is."""

Json = dict[str, Any]


class Account(NamedTuple):
    """A service account."""

    namespace: str
    name: str

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def flags(self) -> list[str]:
        """The flags of kubectl with which an administrator acts as the account."""
        groups = ("serviceaccounts", f"serviceaccounts:{self.namespace}", "authenticated")
        return [f"--as={self.user}", *(f"--as-group=system:{group}" for group in groups)]


class ApiRequest(NamedTuple):
    """One verb on one resource; `namespace` is empty for cluster-scoped resources."""

    group: str
    version: str
    resource: str
    namespace: str
    verb: str

    def method_and_path(self) -> tuple[str, str]:
        """The HTTP method and path."""
        kind, _, part = self.resource.partition("/")
        path = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespace:
            path += f"/namespaces/{self.namespace}"
        path += f"/{kind}"
        if part or self.verb not in _ON_COLLECTIONS:
            path += f"/{MISSING_NAME}"
        path += f"/{part}" if part else ""
        return METHODS[self.verb], path + _QUERIES.get(self.verb, "")


@dataclass(frozen=True)
class GrantedRule:
    """One rule of an account; `namespace` is empty if it holds in the whole cluster."""

    namespace: str
    rule: Mapping[str, Sequence[str]]

    def covers(self, request: ApiRequest) -> bool:
        """Whether the rule allows the request for objects of any name."""
        if self.namespace not in ("", request.namespace) or self.rule.get("resourceNames"):
            return False
        asked = (
            ("apiGroups", request.group),
            ("resources", request.resource),
            ("verbs", request.verb),
        )
        return all({word, "*"} & set(self.rule.get(field, _NONE)) for field, word in asked)


def granted_rules(manifests: Sequence[Json], account: Account) -> list[GrantedRule]:
    """The rules that these roles and bindings give to an account."""
    roles = {(each["kind"], _namespace(each), each["metadata"]["name"]): each for each in manifests}
    found = []
    for each in manifests:
        if not each["kind"].endswith("RoleBinding"):
            continue
        subjects = [(one.get("namespace"), one["name"]) for one in each.get("subjects", [])]
        if (account.namespace, account.name) not in subjects:
            continue
        kind, home = each["roleRef"]["kind"], _namespace(each)
        role = roles[kind, "" if kind == "ClusterRole" else home, each["roleRef"]["name"]]
        found += [GrantedRule(home, rule) for rule in role.get("rules", [])]
    return found


def rules_of_all_accounts(kubectl: Kubectl) -> list[GrantedRule]:
    """The rules that Kubernetes itself gives to all accounts; 1.37 gives more than 1.36."""
    bindings = kubectl.get("clusterrolebindings", "", "-l", "kubernetes.io/bootstrapping")
    roles = [
        each["roleRef"]["name"]
        for each in bindings
        if any(subject["name"] in _ALL_ACCOUNTS for subject in each.get("subjects") or ())
    ]
    return [
        GrantedRule("", rule)
        for role in roles
        for rule in kubectl.get("clusterrole", role)["rules"]
    ]


def parse_manifests(text: str) -> list[Json]:
    """The objects of a release, from the output of `helm get manifest`."""
    return [each for each in yaml_documents.load_all(text) if each]


def all_requests(kubectl: Kubectl, namespaces: Sequence[str]) -> list[ApiRequest]:
    """Requests for every verb of every served resource, in each of the namespaces."""
    paths = {"v1": "/api/v1"}
    for group in json.loads(kubectl.run("get", "--raw", "/apis"))["groups"]:
        version = group["preferredVersion"]["groupVersion"]
        paths[version] = f"/apis/{version}"
    found = []
    for group_version, path in paths.items():
        group, _, version = group_version.rpartition("/")
        for each in json.loads(kubectl.run("get", "--raw", path))["resources"]:
            places = namespaces if each["namespaced"] else [""]
            verbs = [verb for verb in each["verbs"] if verb in METHODS]
            found += [
                ApiRequest(group, version, each["name"], place, verb)
                for place in places
                for verb in verbs
            ]
    return found


def forbidden(kubectl: Kubectl, account: Account, asked: Sequence[ApiRequest]) -> list[bool]:
    """Whether the API server denied the account each of the requests."""
    with _proxy(kubectl, account) as port:

        def refused(part: Sequence[ApiRequest]) -> list[bool]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            with contextlib.closing(connection):
                return [_is_forbidden(connection, each) for each in part]

        size = -(-len(asked) // CONCURRENCY)
        parts = [asked[start : start + size] for start in range(0, len(asked), size)]
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            return [answer for part in pool.map(refused, parts) for answer in part]


def kubectl_with_token(kubectl: Kubectl, token: str, directory: Path) -> Kubectl:
    """A kubectl that authenticates with a token only."""
    config = yaml_documents.load(kubectl.kubeconfig.read_text())
    for each in config["users"]:
        each["user"] = {"token": token}
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return replace(kubectl, kubeconfig=path)


def send_request(who: Kubectl, method: str, path: str, change: Json) -> str:
    """Send exactly one request as the user of `kubectl_with_token`."""
    config = yaml_documents.load(who.kubeconfig.read_text())
    cluster, token = config["clusters"][0]["cluster"], config["users"][0]["user"]["token"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    kinds = {"PATCH": "application/merge-patch+json"}
    request = urllib.request.Request(
        cluster["server"] + path,
        method=method,
        data=json.dumps(change).encode(),
        headers={
            "Authorization": f"Bearer {token}",
            "Content-Type": kinds.get(method, "application/json"),
        },
    )
    context = ssl.create_default_context(cadata=authority)
    try:
        with urllib.request.urlopen(request, context=context, timeout=10) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code}: {json.loads(error.read())['message']}"


def _namespace(obj: Json) -> str:
    """The namespace of a role or binding; empty for those of the cluster."""
    is_local = obj["kind"] in ("Role", "RoleBinding")
    return str(obj["metadata"]["namespace"]) if is_local else ""


def _is_forbidden(connection: http.client.HTTPConnection, request: ApiRequest) -> bool:
    method, path = request.method_and_path()
    kinds = {"PATCH": "application/merge-patch+json"}
    body = "{}" if method in ("POST", "PUT", "PATCH") else None
    connection.request(method, path, body, {"Content-Type": kinds.get(method, "application/json")})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != http.HTTPStatus.FORBIDDEN:
        return False
    return f'cannot {request.verb} resource "{request.resource}"' in json.loads(text)["message"]


@contextlib.contextmanager
def _proxy(kubectl: Kubectl, account: Account) -> Iterator[int]:
    """Run `kubectl proxy` as the account, and yield its port."""
    argv = [*kubectl.argv(), *account.flags, "proxy", "--port=0", "--reject-paths=^$"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()  # Starting to serve on 127.0.0.1:40123
            assert line.startswith("Starting to serve on"), (
                f"unexpected output of kubectl proxy: {line!r}"
            )
            yield int(line.rpartition(":")[2])
        finally:
            process.terminate()
