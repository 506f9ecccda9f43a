"""What accounts may, by the roles that an install made, and what the API server lets them.

Each verb of each resource that the API server serves is one request as the account. Who is allowed
is decided before anything else, so that objects which nobody has made and bodies that say nothing
will do: a refusal is told from every other answer by its words.
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
from kubectl import Kubectl

NOBODY = "nobody-has-this-name"
AT_ONCE = 4
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
    "deletecollection": f"?dryRun=All&labelSelector={NOBODY}",
}
_NONE: Sequence[str] = ()

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
        """By which an administrator acts as the account."""
        groups = ("serviceaccounts", f"serviceaccounts:{self.namespace}", "authenticated")
        return [f"--as={self.user}", *(f"--as-group=system:{group}" for group in groups)]


class Request(NamedTuple):
    """One verb on one resource; `namespace` is empty where the resource has none."""

    group: str
    version: str
    resource: str
    namespace: str
    verb: str

    def line(self) -> tuple[str, str]:
        """Method and path."""
        kind, _, part = self.resource.partition("/")
        path = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespace:
            path += f"/namespaces/{self.namespace}"
        path += f"/{kind}"
        if part or self.verb not in _ON_COLLECTIONS:
            path += f"/{NOBODY}"
        path += f"/{part}" if part else ""
        return METHODS[self.verb], path + _QUERIES.get(self.verb, "")


@dataclass(frozen=True)
class Grant:
    """One rule that an account has; `namespace` is empty where it holds in the whole cluster."""

    namespace: str
    rule: Mapping[str, Sequence[str]]

    def covers(self, request: Request) -> bool:
        """Whether it allows the request for an object of any name."""
        if self.namespace not in ("", request.namespace) or self.rule.get("resourceNames"):
            return False
        asked = (
            ("apiGroups", request.group),
            ("resources", request.resource),
            ("verbs", request.verb),
        )
        return all({word, "*"} & set(self.rule.get(field, _NONE)) for field, word in asked)


def grants(manifests: Sequence[Json], account: Account) -> list[Grant]:
    """What these roles and their bindings give to an account."""
    roles = {(each["kind"], _home(each), each["metadata"]["name"]): each for each in manifests}
    found = []
    for each in manifests:
        if not each["kind"].endswith("RoleBinding"):
            continue
        subjects = [(one.get("namespace"), one["name"]) for one in each.get("subjects", [])]
        if (account.namespace, account.name) not in subjects:
            continue
        kind, home = each["roleRef"]["kind"], _home(each)
        role = roles[kind, "" if kind == "ClusterRole" else home, each["roleRef"]["name"]]
        found += [Grant(home, rule) for rule in role.get("rules", [])]
    return found


def of_everybody(kubectl: Kubectl) -> list[Grant]:
    """What every account may, by Kubernetes itself."""
    return [Grant("", rule) for rule in kubectl.get("clusterrole", "system:basic-user")["rules"]]


def rendered(text: str) -> list[Json]:
    """The objects of a release, as `helm get manifest` shows them."""
    return [each for each in yaml.safe_load_all(text) if each]


def every(kubectl: Kubectl, namespaces: Sequence[str]) -> list[Request]:
    """Every verb of every resource that is served, in each of the namespaces."""
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
                Request(group, version, each["name"], place, verb)
                for place in places
                for verb in verbs
            ]
    return found


def refusals(kubectl: Kubectl, account: Account, asked: Sequence[Request]) -> list[bool]:
    """Whether the account was refused each of the requests, for want of that right."""
    with _proxy(kubectl, account) as port:

        def refused(part: Sequence[Request]) -> list[bool]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            with contextlib.closing(connection):
                return [_is_refused(connection, each) for each in part]

        size = -(-len(asked) // AT_ONCE)
        parts = [asked[start : start + size] for start in range(0, len(asked), size)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [answer for part in pool.map(refused, parts) for answer in part]


def with_token(kubectl: Kubectl, token: str, directory: Path) -> Kubectl:
    """Kubectl with somebody's own token, and nothing else to be known by."""
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    for each in config["users"]:
        each["user"] = {"token": token}
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return replace(kubectl, kubeconfig=path)


def sent(who: Kubectl, method: str, path: str, change: Json) -> str:
    """What the API server says to one request of `with_token`; kubectl would ask others before."""
    config = yaml.safe_load(who.kubeconfig.read_text())
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


def _home(obj: Json) -> str:
    """The namespace of a role or binding; empty for those of the cluster."""
    is_local = obj["kind"] in ("Role", "RoleBinding")
    return str(obj["metadata"]["namespace"]) if is_local else ""


def _is_refused(connection: http.client.HTTPConnection, request: Request) -> bool:
    method, path = request.line()
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
    """A port of this machine at which the API server takes everybody for the account."""
    argv = [*kubectl.argv(), *account.flags, "proxy", "--port=0", "--reject-paths=^$"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()  # Starting to serve on 127.0.0.1:40123
            assert line.startswith("Starting to serve on"), f"kubectl proxy said: {line!r}"
            yield int(line.rpartition(":")[2])
        finally:
            process.terminate()
