# SPDX-License-Identifier: Apache-2.0
"""The chart and the webhook with a real API server, which users' objects go through."""

import asyncio
import base64
import json
import re
import ssl
import subprocess
import urllib.error
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from nvdra_api.gates import FeatureGates
from nvdra_lab import environment
from nvdra_runtime.kube import client as kube
from nvdra_runtime.kube.connection import KubeSettings
from nvdra_testing import charts, ports
from nvdra_testing.admission import webhook_process
from nvdra_testing.admission.webhook_process import WebhookProcess
from nvdra_testing.control_plane import apiserver
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.polling import wait_until
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.certificates.managed import ManagedKeyPairs, Places
from nvdra_webhook.certificates.tls import TlsKeyPair
from nvdra_webhook.endpoints import VALIDATE_PATH, WARN_PATH, Endpoints
from nvdra_webhook.metrics import WebhookMetrics
from nvdra_webhook.serving import server as https
from nvdra_webhook.serving.connection import Limits

CHART = charts.folder("nvdra-webhook")
DRIVER, NAME = "nvdra-system", "nvdra-nvdra-webhook"
SECRET = f"/api/v1/namespaces/{DRIVER}/secrets/{NAME}-cert"
CONFIGURATION = (
    f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{NAME}-config"
)
PLACES = Places(DRIVER, f"{NAME}-cert", f"{NAME}-config", frozenset(("localhost",)))
OURS = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
WRONG = {
    **OURS,
    "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}},
}

Json = dict[str, Any]


def program(pattern: str) -> str:
    return str(next(environment.read().cache.binaries.glob(pattern)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with the chart, of which the Service is replaced by a URL."""
    older = "resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true"
    directory = tmp_path_factory.mktemp("api")
    with apiserver.run_apiserver(directory, runtime_config=older) as running:
        command = [program("helm-*/helm"), "--kubeconfig", str(running.kubeconfig), "install"]
        where = ["nvdra", str(CHART), "--namespace", DRIVER, "--create-namespace"]
        values = (
            charts.FROM_REGISTRY,
            "--set=tls.mode=self-managed",
            "--set=warnings.timeoutSeconds=30",
            "--set=timeoutSeconds=30",
        )
        done = subprocess.run([*command, *where, *values], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        running.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
        yield running


def point_at(server: ApiServer, port: int) -> None:
    """Register the address of a webhook of this machine, as the Service is nothing here."""
    configuration = server.request("GET", CONFIGURATION)
    for webhook, path in zip(configuration["webhooks"], (VALIDATE_PATH, WARN_PATH), strict=True):
        webhook["clientConfig"].pop("service", None)
        webhook["clientConfig"]["url"] = f"https://localhost:{port}{path}"
    server.request("PUT", CONFIGURATION, configuration)


def claim(
    parameters: Json | None,
    driver: str = "gpu.nvidia.com",
    classes: Sequence[str] = ("gpu.nvidia.com",),
    **metadata: Any,
) -> Json:
    entries = (
        [] if parameters is None else [{"opaque": {"driver": driver, "parameters": parameters}}]
    )
    requests = [
        {"name": f"r{number}", "exactly": {"deviceClassName": name}}
        for number, name in enumerate(classes)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"claim-{uuid.uuid4().hex[:8]}", "namespace": "team", **metadata},
        "spec": {"devices": {"requests": requests, "config": entries}},
    }


def template(parameters: Json) -> Json:
    made = claim(parameters)
    return {**made, "kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def apply(server: ApiServer, manifest: Json) -> subprocess.CompletedProcess[str]:
    command = [program("kubernetes-1.36*/kubectl"), "--kubeconfig", str(server.kubeconfig)]
    return subprocess.run(
        [*command, "apply", "-f", "-"],
        input=json.dumps(manifest),
        capture_output=True,
        text=True,
        check=False,
    )


def path_of(resource: str = "resourceclaims", name: str = "") -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/team/{resource}/{name}".rstrip("/")


def replica_flags(server: ApiServer) -> list[str]:
    """The flags of a replica, with the rights that the chart gives it."""
    path = f"/api/v1/namespaces/{DRIVER}/serviceaccounts/{NAME}/token"
    token = server.create(path, {"spec": {}})["status"]["token"]
    return [
        f"--kubeconfig={server.write_token_kubeconfig(token, 'webhook')}",
        f"--tls-secret-name={NAME}-cert",
        f"--namespace={DRIVER}",
        f"--service-name={NAME}",
        f"--webhook-configuration-name={NAME}-config",
        "--tls-dns-names=localhost",
        "--cluster-lookup-interval=1h",
        "--feature-gates=MPSSupport=true",
        "--shutdown-grace-period=0s",
    ]


@pytest.fixture
async def webhook(server: ApiServer, tmp_path: Path) -> AsyncIterator[WebhookProcess]:
    with webhook_process.run_webhook(tmp_path, *replica_flags(server)) as process:
        await wait_until(process.is_ready)
        point_at(server, process.port)
        await wait_until(lambda: is_called(server, process))
        yield process


def is_called(server: ApiServer, webhook: WebhookProcess) -> bool:
    """Whether API servers have read the registration: a claim of ours comes to this webhook."""
    before = webhook.answered()
    try:
        server.create(f"{path_of()}?dryRun=All", claim(OURS))
    except urllib.error.HTTPError:
        return False
    return webhook.answered() > before


async def test_a_user_reads_what_is_wrong_where_and_what_would_be_right(
    server: ApiServer, webhook: WebhookProcess
) -> None:
    refused = apply(server, claim(WRONG))
    assert refused.returncode == 1
    assert (
        "spec.devices.config[0].opaque.parameters.sharing.mpsConfig.defaultActiveThreadPercentage: "
        "active thread percentage must not be greater than 100; write a whole number from 0 to 100"
    ) in refused.stderr
    in_template = apply(server, template({**OURS, "sharng": {}}))
    assert 'spec.spec.devices.config[0].opaque.parameters.sharng: unknown field "sharng"; ' in (
        in_template.stderr
    )
    assert 'did you mean "sharing"?' in in_template.stderr
    accepted = apply(server, claim(OURS))
    assert accepted.returncode == 0, accepted.stderr


async def test_a_class_that_does_not_exist_is_told_until_it_does(
    server: ApiServer, webhook: WebhookProcess
) -> None:
    """Also of claims without a config of ours; the first pauses between looks are short."""
    asked = ["gpu.nvidia.com", "never.example.com"]
    for parameters, driver in ((OURS, "gpu.nvidia.com"), (None, ""), ({"a": 1}, "a.example.com")):
        made = claim(parameters, driver, classes=asked)
        await wait_until(partial(is_told, server, made, asked))
    spec = {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]}
    made = {"metadata": {"name": "gpu.nvidia.com"}, "spec": spec}
    server.create("/apis/resource.k8s.io/v1/deviceclasses", made)
    try:
        made = claim(None, classes=asked)
        await wait_until(partial(is_told, server, made, ["never.example.com"]), 180)
    finally:
        server.request("DELETE", "/apis/resource.k8s.io/v1/deviceclasses/gpu.nvidia.com")


def is_told(server: ApiServer, made: Json, missing: list[str]) -> bool:
    """Whether the claim is taken, and whoever makes it is told of these classes and no others."""
    done = apply(server, {**made, "metadata": {**made["metadata"], "name": f"c-{uuid.uuid4()}"}})
    assert done.returncode == 0, done.stderr
    return re.findall(r'there is no DeviceClass "([^"]*)"', done.stderr) == missing


async def test_each_version_of_the_api_is_examined(
    server: ApiServer, webhook: WebhookProcess
) -> None:
    for version in ("v1", "v1beta2", "v1beta1"):
        made = claim(WRONG)
        made["apiVersion"] = f"resource.k8s.io/{version}"
        if version == "v1beta1":
            request = {"name": "gpu", "deviceClassName": "gpu.nvidia.com"}
            made["spec"]["devices"]["requests"] = [request]
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.create(path_of().replace("/v1/", f"/{version}/"), made)
        with refused.value as answer:
            status = json.loads(answer.read())
        assert status["code"] == 422
        assert status["message"].startswith(
            'admission webhook "gpu.nvidia.com" denied the request: 1 configs failed to validate'
        )


async def test_objects_that_are_unchanged_or_made_for_a_pod_are_not_sent(
    server: ApiServer, webhook: WebhookProcess
) -> None:
    kept = [claim(each, finalizers=["example.com/kept"]) for each in (OURS, None)]
    names = [server.create(path_of(), made)["metadata"]["name"] for made in kept]
    before = webhook.answered()
    pod = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": str(uuid.uuid4())}
    server.create(path_of(), claim(None, ownerReferences=[pod]))
    # Their labels change, they are being deleted, and their finalizers go.
    for name in names:
        stored = server.request("GET", path_of(name=name))
        stored["metadata"]["labels"] = {"a": "b"}
        server.request("PUT", path_of(name=name), stored)
        server.request("DELETE", path_of(name=name))
        stored = server.request("GET", path_of(name=name))
        stored["metadata"]["finalizers"] = []
        server.request("PUT", path_of(name=name), stored)
    # In the driver's own namespace are the claims of IMEX daemons.
    own = claim(WRONG, namespace=DRIVER)
    server.create(f"{path_of()}?dryRun=All".replace("team", DRIVER), own)
    assert webhook.answered() == before
    # With a config of ours it is asked about, whoever makes it.
    server.create(path_of(), claim(OURS, ownerReferences=[pod]))
    assert webhook.answered() == before + 1
    server.create(path_of(), claim(None))
    assert webhook.answered() == before + 2


async def test_without_a_webhook_only_new_objects_of_ours_are_refused(
    server: ApiServer, webhook: WebhookProcess
) -> None:
    made = server.create(path_of(), claim(OURS, finalizers=["example.com/kept"]))
    webhook.process.kill()
    webhook.process.wait()
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.create(path_of(), claim(OURS))
    with refused.value as answer:
        assert b"failed calling webhook" in answer.read()
    server.create(path_of(), claim({"anything": 1}, "gpu.example.com"))
    server.create(path_of(), claim(None))
    stored = server.request("GET", path_of(name=made["metadata"]["name"]))
    stored["metadata"]["finalizers"] = []
    server.request("PUT", path_of(name=made["metadata"]["name"]), stored)
    server.request("DELETE", path_of(name=made["metadata"]["name"]))


async def test_replicas_that_start_at_once_share_one_key_pair(
    server: ApiServer, tmp_path: Path
) -> None:
    stored = server.request("GET", SECRET)
    stored["data"] = {}
    server.request("PUT", SECRET, stored)
    flags = replica_flags(server)
    with (
        webhook_process.run_webhook(tmp_path, *flags, name="one") as one,
        webhook_process.run_webhook(tmp_path, *flags, name="two") as two,
    ):
        await wait_until(lambda: one.is_ready() and two.is_ready())
        data = server.request("GET", SECRET)["data"]
        registered = server.request("GET", CONFIGURATION)["webhooks"]
        bundles = [each["clientConfig"]["caBundle"] for each in registered]
        assert bundles == [data["ca.crt"]] * 2
        pem = base64.b64decode(data["tls.crt"])
        serial = f'serial="{x509.load_pem_x509_certificate(pem).serial_number:x}"'
        for replica in (one, two):
            assert serial in replica.log.read_text()


@asynccontextmanager
async def constant_creations(server: ApiServer, failures: list[str]) -> AsyncIterator[list[int]]:
    """Create claims of ours, right and wrong, over and over. Yields the number of answers."""
    counted = [0]
    is_over = asyncio.Event()

    def create(body: Json) -> str:
        try:
            server.create(f"{path_of()}?dryRun=All", body)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
            return "" if body is wrong and "must not be greater" in text else text
        return "a wrong claim was let in" if body is wrong else ""

    right, wrong = claim(OURS), claim(WRONG)

    async def repeat() -> None:
        while not is_over.is_set():
            for body in (right, wrong):
                if text := await asyncio.to_thread(create, body):
                    failures.append(text)
                counted[0] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(repeat())
        yield counted
        is_over.set()


async def test_an_authority_is_replaced_while_claims_are_created(server: ApiServer) -> None:
    stored = server.request("GET", SECRET)
    stored["data"] = {}
    server.request("PUT", SECRET, stored)
    real = datetime.now(UTC)
    now = real - timedelta(days=500)
    tls = TlsKeyPair("VersionTLS12", lambda: now)
    metrics = WebhookMetrics()
    gates = FeatureGates.parse("MPSSupport=true")
    endpoints = Endpoints(gates, ClusterNames, {}, metrics, asyncio.get_running_loop().time)
    failures: list[str] = []
    port = ports.free_ports(1)[0]
    async with (
        kube.connect(KubeSettings(str(server.kubeconfig))) as api,
        https.serve(
            "127.0.0.1",
            port,
            tls.context,
            endpoints.respond,
            Limits(1 << 20),
            on_failure=lambda: None,
            on_dropped=metrics.process.connection_dropped,
        ),
    ):
        pairs = ManagedKeyPairs(api, PLACES, tls, lambda: now, lambda: None)
        serials, authorities = [], []

        async def look() -> None:
            await pairs.look()
            data = (await api.get(SECRET, asyncio.get_running_loop().time() + 5))["data"]
            serving = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
            bundle = x509.load_pem_x509_certificates(base64.b64decode(data["ca.crt"]))
            serials.append(serving.serial_number)
            authorities.append([each.serial_number for each in bundle])

        async def connect() -> None:
            """As an API server does that has no connection yet."""
            configuration = server.request("GET", CONFIGURATION)
            text = configuration["webhooks"][0]["clientConfig"]["caBundle"]
            trusted = ssl.create_default_context(cadata=base64.b64decode(text).decode())
            _, writer = await asyncio.open_connection("localhost", port, ssl=trusted)
            writer.close()

        await look()
        now = real - timedelta(minutes=11)
        await look()  # a second authority is published, and the first one signs
        point_at(server, port)
        await asyncio.to_thread(wait_created, server)
        async with constant_creations(server, failures) as counted:
            await wait_until(lambda: counted[0] > 10)
            now = real
            await look()  # the second one signs
            await connect()
            seen = counted[0]
            await wait_until(lambda: counted[0] > seen + 20)
            now = real + timedelta(days=1, minutes=20)
            await look()  # the first one is forgotten
            await connect()
            seen = counted[0]
            await wait_until(lambda: counted[0] > seen + 20)
    assert failures == []
    assert [len(each) for each in authorities] == [1, 2, 2, 1]
    assert authorities[3] == authorities[2][1:]
    assert len(set(serials)) == 3
    assert serials[2] == serials[3]


def wait_created(server: ApiServer) -> None:
    """Wait until a claim of ours can be created with the webhook that is registered."""
    for _ in range(100):
        try:
            server.create(f"{path_of()}?dryRun=All", claim(OURS))
        except urllib.error.HTTPError:
            continue
        return
    raise AssertionError("no claim can be created")
