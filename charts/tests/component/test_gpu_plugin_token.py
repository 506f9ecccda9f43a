# SPDX-License-Identifier: Apache-2.0
"""What an API server answers to a thief of the GPU plugin's token on a node.

The account has all rights here: what is refused, an admission policy refuses.
"""

from collections.abc import Iterator, Mapping

import pytest
from nvdra_testing.control_plane import installation, pod_changes, pod_tokens
from nvdra_testing.control_plane.installation import (
    DAEMON_ID,
    DEPLOYMENTS,
    GPU_PLUGIN,
    NAMESPACE,
    NODE,
    OTHER_NODE,
    Installation,
)
from nvdra_testing.control_plane.pod_changes import (
    Change,
    Json,
    changed,
    container_of,
    in_container,
    in_pod,
    in_template,
    pod_of,
    with_argument,
    with_host_path,
    with_image,
    with_mount,
    with_variable,
    with_volume,
)
from nvdra_testing.control_plane.pod_tokens import Answer, User

MPS = f"{GPU_PLUGIN}-mps"
CLAIMS = f"{GPU_PLUGIN}-claims"
FOLDER = "/var/lib/kubelet/plugins/gpu.nvidia.com/mps"
IMAGE = "mirror/nvdra/nvdra-gpu-plugin"
NOTHING_ELSE = "and nothing else of its node or network"
ONLY_ITS_OWN = f"this user running on node '{NODE}' may only make and delete MPS control daemons of"
VOLUMES = "has directories of its node and no other volumes"
MOUNTS = "has the driver's root and its own directories where it looks for them"
COMMAND = "runs the command nvdra-gpu-plugin mps-daemon"
PRIVILEGED = "is privileged, and has no ports"
SECRET = {"secretKeyRef": {"name": "nvdra-nvdra-webhook-cert", "key": "tls.key"}}
TOKEN = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
LABELS = {
    "app": f"mps-control-daemon-{DAEMON_ID}",
    "app.kubernetes.io/name": "nvdra-webhook",
    "app.kubernetes.io/instance": "nvdra",
}
"""By which the webhook's Service finds its pods."""


def terms_of(obj: Json) -> list[Json]:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms: list[Json] = pod_of(obj)["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    return terms


def owned(**changes: object) -> Change:
    """With an owner that differs from the Node of the daemon."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "u", "controller": True}

    def change(obj: Json) -> None:
        obj["metadata"]["ownerReferences"] = [{**owner, **changes}]

    return change


ATTACKS: Mapping[str, tuple[Change, str]] = {
    "another name": (pod_changes.named("nvdra-nvdra-webhook"), ONLY_ITS_OWN),
    "another node": (
        lambda obj: terms_of(obj)[0]["matchFields"][0].update(values=[OTHER_NODE]),
        ONLY_ITS_OWN,
    ),
    "any node": (in_pod(affinity={}), ONLY_ITS_OWN),
    "another term": (
        lambda obj: terms_of(obj).append(
            {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
        ),
        ONLY_ITS_OWN,
    ),
    "another owner": (owned(kind="Pod"), "no other owner than its Node"),
    "another node's": (owned(name=OTHER_NODE), "no other owner than its Node"),
    "an owner that waits for it": (owned(blockOwnerDeletion=True), "does not delay its deletion"),
    "a thousand pods": (lambda obj: obj["spec"].update(replicas=1000), "and there is one"),
    "labels of a Service": (in_template(labels=LABELS), "has the labels app and"),
    "annotations": (in_template(annotations={"a": "b"}), "and no annotations"),
    "a finalizer": (
        lambda obj: obj["metadata"].update(finalizers=["a.example.com/b"]),
        "has no finalizers",
    ),
    "finalizers of pods": (in_template(finalizers=["a.example.com/b"]), "has no finalizers"),
    "another seccomp profile": (pod_changes.unconfined, NOTHING_ELSE),
    "a container's seccomp profile": (
        in_container(
            securityContext={"privileged": True, "seccompProfile": {"type": "Unconfined"}}
        ),
        PRIVILEGED,
    ),
    "no privileges": (in_container(securityContext={}), PRIVILEGED),
    "two containers": (pod_changes.with_container(), "has one container"),
    "a node selector": (in_pod(nodeSelector={"a": "b"}), NOTHING_ELSE),
    "a claim": (in_pod(resourceClaims=[{"name": "x", "resourceClaimName": "y"}]), NOTHING_ELSE),
    "the pod's sysctls": (
        in_pod(securityContext={"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}),
        NOTHING_ELSE,
    ),
    **pod_changes.every_field(NOTHING_ELSE, PRIVILEGED),
    "another account": (pod_changes.with_account("nvdra-nvdra-webhook"), "without its token"),
    "the token": (in_pod(automountServiceAccountToken=True), "without its token"),
    "another priority": (in_pod(priorityClassName="system-cluster-critical"), "priority class"),
    "another pull secret": (in_pod(imagePullSecrets=[{"name": "x"}]), "image pull secrets"),
    "another image": (in_container(image="busybox"), "in the image of the plugin"),
    "an image beside it": (with_image(f"{IMAGE}:", f"{IMAGE}-x:"), "in the image of the plugin"),
    "an image below it": (with_image(f"{IMAGE}:", f"{IMAGE}/x:"), "in the image of the plugin"),
    "another command": (in_container(command=["sh"]), COMMAND),
    "no command": (in_container(command=[]), COMMAND),
    "another flag": (with_argument("--driver-root=/mps"), COMMAND),
    "a flag of two lines": (with_argument("--multi-user\n--x"), COMMAND),
    "a variable": (with_variable(name="LD_PRELOAD", value="/mps/x"), COMMAND),
    "a Secret in a variable": (with_variable(name="FEATURE_GATES", valueFrom=SECRET), COMMAND),
    "another probe": (in_container(startupProbe=pod_changes.COMMAND), "and its probe"),
    "ports": (in_container(ports=[{"containerPort": 443, "hostPort": 443}]), PRIVILEGED),
    "another user": (
        in_container(securityContext={"privileged": True, "runAsUser": 1}),
        PRIVILEGED,
    ),
    "a file over another": (in_container(terminationMessagePath="/driver-root/etc/x"), PRIVILEGED),
    "a Secret": (with_volume({"secret": {"secretName": "nvdra-nvdra-webhook-cert"}}), VOLUMES),
    "a token": (with_volume(TOKEN), VOLUMES),
    "an empty directory": (with_volume({"emptyDir": {}}), VOLUMES),
    "the node's root": (with_host_path("/"), VOLUMES),
    "the kubelet's directory": (with_host_path("/var/lib/kubelet"), VOLUMES),
    "another daemon's directory": (with_host_path(f"{FOLDER}/another"), VOLUMES),
    "one whose name begins alike": (with_host_path(f"{FOLDER}/{DAEMON_ID}x"), VOLUMES),
    "a file": (with_host_path(f"{FOLDER}/{DAEMON_ID}/run", "File"), VOLUMES),
    "a mount over programs": (with_mount("/mps", mountPath="/driver-root/usr/bin"), MOUNTS),
    "the driver's root elsewhere": (
        with_mount("/driver-root", mountPath="/driver-root/dev/shm"),
        MOUNTS,
    ),
    "a path below a volume": (with_mount("/mps", subPath="x"), MOUNTS),
    "mounts that reach the node": (
        with_mount("/driver-root", mountPropagation="Bidirectional"),
        MOUNTS,
    ),
}


@pytest.fixture
def daemon(installed: Installation) -> Iterator[str]:
    """The path of a daemon's Deployment that the plugin has made."""
    wanted = installed.mps_daemon()
    path = f"{DEPLOYMENTS}/{wanted['metadata']['name']}"
    made = installed.plugin.create(DEPLOYMENTS, wanted)
    assert made.status == 201, made
    yield path
    installed.admin.send("DELETE", path)


@pytest.fixture
def claim(installed: Installation) -> Iterator[str]:
    """The path of a tenant's claim with a device of each node."""
    path = installation.allocated_claim(installed, "of-a-tenant")
    yield path
    installation.delete_claim(installed, path)


def assert_refused(answer: Answer, policy: str, words: str) -> None:
    assert answer.status in (403, 422), answer
    assert f"ValidatingAdmissionPolicy '{policy}'" in answer.text
    assert words in answer.text


def test_the_plugin_makes_and_deletes_daemons_of_its_node(
    installed: Installation, daemon: str
) -> None:
    gone = installed.plugin.send("DELETE", daemon)
    assert gone.status == 200, gone


def test_the_plugin_makes_daemons_whose_programs_run_in_the_drivers_root(
    installed: Installation,
) -> None:
    shm = with_mount("/dev/shm", mountPath="/driver-root/dev/shm")
    answer = installed.plugin.try_create(DEPLOYMENTS, changed(installed.mps_daemon(), shm))
    assert answer.status == 201, answer


@pytest.mark.parametrize("tag", [":0.0.1", "", f"@sha256:{'a' * 64}", f":0.0.1@sha256:{'a' * 64}"])
def test_plugins_of_two_releases_make_daemons_while_one_replaces_the_other(
    installed: Installation, tag: str
) -> None:
    wanted = installed.mps_daemon()
    repository, _, _ = container_of(wanted)["image"].rpartition(":")
    container_of(wanted)["image"] = repository + tag
    answer = installed.plugin.try_create(DEPLOYMENTS, wanted)
    assert answer.status == 201, answer


def test_what_another_admission_adds_is_admitted_if_it_is_named(installed: Installation) -> None:
    obj = changed(installed.mps_daemon(), pod_changes.with_admitted_additions)
    answer = installed.plugin.try_create(DEPLOYMENTS, obj)
    assert answer.status == 201, answer


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_stolen_token_makes_no_other_pod(installed: Installation, attack: str) -> None:
    change, words = ATTACKS[attack]
    obj = changed(installed.mps_daemon(), change)
    assert_refused(installed.plugin.try_create(DEPLOYMENTS, obj), MPS, words)


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "another name"])
def test_a_stolen_token_changes_no_daemon_into_another_pod(
    installed: Installation, daemon: str, attack: str
) -> None:
    change, words = ATTACKS[attack]
    obj = changed(installed.mps_daemon(), change)
    assert_refused(installed.plugin.send("PUT", f"{daemon}?dryRun=All", obj), MPS, words)


@pytest.mark.parametrize("is_a_daemon", [True, False])
def test_a_stolen_token_touches_no_other_deployment(
    installed: Installation, is_a_daemon: bool
) -> None:
    theirs = (
        installed.mps_daemon(OTHER_NODE) if is_a_daemon else installation.stranger("Deployment")
    )
    stored = installed.admin.create(DEPLOYMENTS, theirs).body
    path, plugin = f"{DEPLOYMENTS}/{theirs['metadata']['name']}", installed.plugin
    taken = {**installed.mps_daemon(), "metadata": stored["metadata"]}
    for answer in (
        plugin.send("DELETE", path),
        plugin.send("DELETE", DEPLOYMENTS),
        plugin.send("PUT", path, stored),
        plugin.send("PUT", path, taken),
        plugin.merge(path, {"metadata": {"labels": {"a": "b"}}}),
        plugin.merge(path, {"spec": {"paused": True}}),
    ):
        if answer.status != 422 or "field is immutable" not in answer.text:
            assert_refused(answer, MPS, ONLY_ITS_OWN)
    for part in ("scale", "status"):
        answer = plugin.merge(f"{path}/{part}", {"spec": {"replicas": 0}})
        assert_refused(answer, MPS, f"may not write the {part} of deployments")
    assert installed.admin.send("DELETE", path).status == 200, "it is there"


def test_a_token_of_no_pod_makes_nothing(installed: Installation) -> None:
    stolen = pod_tokens.token(installed.server, NAMESPACE, GPU_PLUGIN)
    user = User(installed.server, stolen)
    answer = user.try_create(DEPLOYMENTS, installed.mps_daemon())
    assert_refused(answer, MPS, "this user running on node '' may only make")


def entry(node: str = NODE, driver: str = "gpu.nvidia.com", **data: str) -> Json:
    return {"driver": driver, "pool": node, "device": "gpu-0", "data": data}


def test_the_plugin_writes_how_devices_of_its_node_are(installed: Installation, claim: str) -> None:
    for entries in ([entry(uuid="x")], [entry(uuid="y")], []):
        answer = installed.plugin.merge(f"{claim}/status", {"status": {"devices": entries}})
        assert answer.status == 200, answer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"devices": [entry(OTHER_NODE)]}, "how devices of another node or driver are"),
        ({"devices": [entry(NODE, "other.example.com")]}, "how devices of another node or"),
        ({"reservedFor": None}, "may change nothing of a claim but how its devices are"),
        ({"reservedFor": [{"resource": "pods", "name": "q", "uid": "v"}]}, "nothing of a claim"),
        ({"reservedFor": None, "allocation": None}, "may change nothing of a claim but"),
    ],
)
def test_a_stolen_token_writes_nothing_else_of_a_claim(
    installed: Installation, claim: str, change: Json, words: str
) -> None:
    answer = installed.plugin.merge(f"{claim}/status", {"status": change})
    assert_refused(answer, CLAIMS, words)


@pytest.mark.parametrize(
    "metadata",
    [
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "gone"}]},
        {"labels": {"a": "b"}},
        {"annotations": {"a": "b"}},
        {"finalizers": ["a.example.com/b"]},
    ],
)
def test_a_stolen_token_writes_no_metadata_of_a_claim(
    installed: Installation, claim: str, metadata: Json
) -> None:
    """The garbage collector deletes what has an owner that does not exist."""
    before = installed.admin.send("GET", claim).body["metadata"]
    installed.plugin.merge(f"{claim}/status", {"metadata": metadata})
    after = installed.admin.send("GET", claim).body["metadata"]
    for key in metadata:
        assert after.get(key) == before.get(key)
