# SPDX-License-Identifier: Apache-2.0
"""The webhook as pods behind a Service: what users read, who depends on it, how it is replaced."""

import base64
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from cryptography import x509
from nvdra_testing import background
from nvdra_testing.cluster import admission_webhook, api_versions, workloads
from nvdra_testing.cluster.installation import NAMESPACE, RELEASE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_webhook.certificates import authority, rotation

GPU, DOMAINS = "gpu.nvidia.com", "compute-domain.nvidia.com"
RENEWED_S = 75
"""Replicas look every 30 s: one of them publishes the authority, the next one uses it."""

Json = dict[str, Any]


def parameters(kind: str = "GpuConfig", **fields: Any) -> Json:
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}


def claim(*configs: Json, driver: str = GPU, name: str = "c") -> Json:
    made = workloads.claim(name, workloads.gpus())
    entries = [{"opaque": {"driver": driver, "parameters": each}} for each in configs]
    made["spec"]["devices"]["config"] = entries
    return made


def template(*configs: Json) -> Json:
    made = workloads.template("t", workloads.gpus())
    made["spec"]["spec"]["devices"]["config"] = claim(*configs)["spec"]["devices"]["config"]
    return made


def sharing(**fields: Any) -> Json:
    return parameters(sharing=fields)


RIGHT = sharing(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
WRONG = sharing(strategy="TimeSlicing", timeSlicingConfig={"interval": "Longish"})
AT = "spec.devices.config[0].opaque.parameters"

REFUSED: dict[str, tuple[Json, list[str]]] = {
    "a value that does not exist": (
        claim(WRONG),
        [f"{AT}.sharing.timeSlicingConfig.interval", "Default, Short, Medium, Long"],
    ),
    "a misspelt field, in a template": (
        template(parameters(sharng={})),
        [f"spec.{AT}.sharng", 'did you mean "sharing"?'],
    ),
    "a number out of range": (
        claim(sharing(strategy="MPS", mpsConfig={"defaultActiveThreadPercentage": 101})),
        [f"{AT}.sharing.mpsConfig.defaultActiveThreadPercentage", "from 0 to 100"],
    ),
    "a kind of the other driver": (
        claim(parameters("ComputeDomainChannelConfig", domainID="x")),
        [f"{AT}: {GPU} does not accept ComputeDomainChannelConfig", "kinds of gpu.nvidia.com are"],
    ),
    "a channel without its domain": (
        claim(parameters("ComputeDomainChannelConfig"), driver=DOMAINS),
        [AT, "domainID"],
    ),
    "a gate that is off": (
        claim(parameters("VfioDeviceConfig")),
        [AT, 'VfioDeviceConfig requires the "PassthroughSupport" feature gate'],
    ),
    "two at once": (
        claim(WRONG, parameters(sharng={})),
        [f"* {AT}.sharing", f"* {AT.replace('0', '1')}.sharng: unknown field"],
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_user_reads_at_apply_which_field_is_wrong_and_what_would_be_right(
    pods: Kubectl, what: str
) -> None:
    manifest, words = REFUSED[what]
    said = pods.apply_rejected(manifest)
    print(f"{what}:\n  {said.strip()}")
    assert " is invalid: " in said
    for word in words:
        assert word in said
    assert not pods.get("resourceclaims")


def test_a_user_reads_at_apply_what_is_accepted_and_will_not_work(pods: Kubectl) -> None:
    """Also of a claim without a config of ours, which the webhook can never refuse."""
    workloads.allow_admin_access(pods)
    misspelt, other, monitored = workloads.gpus(), workloads.gpus(), workloads.gpus(admin=True)
    misspelt["exactly"]["deviceClassName"] = "gpu.nvidia.co"
    other["exactly"]["deviceClassName"] = "mig.nvidia.com"
    for asked, config, warning in (
        (
            misspelt,
            None,
            "spec.devices.requests[0].exactly.deviceClassName: there is no DeviceClass "
            '"gpu.nvidia.co" (unless it was just made), so pods with this claim stay Pending; '
            'did you mean "gpu.nvidia.com"?',
        ),
        (
            other,
            {"kind": "GpuConfig"},
            'spec.devices.config[0]: GpuConfig does not fit request "gpu", so it has no effect; '
            "mig.nvidia.com takes MigDeviceConfig",
        ),
        (
            monitored,
            None,
            "spec.devices.requests[0].exactly.adminAccess: pods with this claim stay Pending while "
            "another claim has the GPU or a part of it, as the feature gate DynamicMIG is on: "
            "Kubernetes counts what they consume, too",
        ),
    ):
        made = workloads.claim("c", asked, config=config)
        told = f"Warning: {warning}".replace(".exactly", exactly(pods))
        pods.wait(partial(not_told, pods, made, told), "the warning")
        print(told)
    right = workloads.claim("c", workloads.gpus())
    pods.wait(lambda: not_told(pods, right, ""), "no warning of a class that exists")


def not_told(pods: Kubectl, manifest: Json, warning: str) -> str | None:
    """What kubectl says besides that it takes the object, if it is not exactly this warning."""
    done = pods.run_unchecked(*create(), text=as_served(pods, manifest))
    assert done.returncode == 0, done.stderr
    return None if done.stderr.strip() == warning else f"it says {done.stderr!r}"


def exactly(pods: Kubectl) -> str:
    """Where a request has its class, below the request."""
    return "" if pods.resource_api_version == "v1beta1" else ".exactly"


def test_while_there_is_no_webhook_only_configs_of_our_drivers_are_refused(
    cluster: Cluster, pods: Kubectl
) -> None:
    scale(cluster, 0)
    try:
        pods.wait(
            lambda: None if try_to_create(pods).returncode else "it is taken",
            "a claim with a config of ours to be refused",
        )
        said = pods.apply_rejected(claim(RIGHT))
        assert 'failed calling webhook "gpu.nvidia.com"' in said
        pods.apply(claim(name="without"))
        pods.apply(claim({"anything": 1}, driver="gpu.example.com", name="of-others"))
        pods.apply(workloads.pod("p", claims=["without"]))
        pods.wait_running("p")
        pods.delete("pod", "p")
        pods.delete("resourceclaim", "without", "of-others")
        code, lines = cluster.helm_test()
        assert code != 0
        print("\n".join(lines))
        assert f"✗ 0 of 0 replicas of {admission_webhook.NAME} are ready" in lines
        (at,) = (number for number, line in enumerate(lines) if "cannot ask the webhook" in line)
        assert "→ look at its pods and their log" in lines[at + 1]
        assert any(line.startswith("✓ node-1: nvdra-gpu-plugin") for line in lines)
    finally:
        scale(cluster, 2)
        # That of a test that failed stays for whoever looks into it.
        cluster.driver_namespace.delete("pod", f"{RELEASE}-test")


def test_its_pods_and_certificates_are_replaced_and_no_apply_fails(
    cluster: Cluster, pods: Kubectl
) -> None:
    """A second authority is published and signs: what is due after two thirds of a life.

    Each replica looks at the Secret at its start: the first publishes the authority, the second
    uses it. So one rollout shows both.
    """
    now, before, stored = datetime.now(UTC), admission_webhook.replicas(cluster), secret(cluster)
    (old,) = (keys := rotation.from_data(stored["data"], now)[0]).authorities
    assert keys.serving is not None
    new = authority.create(now - rotation.PUBLISHED_FIRST - timedelta(minutes=1))
    due = authority.issue(old, keys.serving.dns_names, now - authority.SERVING_LIFETIME * 0.9)
    stored["data"] = rotation.Keys((old, new), due).to_data()
    admission_webhook.wait_trusted(pods)
    with applying(pods) as stream:
        cluster.driver_namespace.apply(stored, "--server-side", "--force-conflicts")
        cluster.driver_namespace.run("rollout", "restart", f"deployment/{admission_webhook.NAME}")
        rolled_out(cluster)
        cluster.kubectl.wait(
            lambda: not_served_by(cluster, new), "the new authority to be used", RENEWED_S
        )
        stream.wait_for(10)
    assert stream.failures == []
    cluster.kubectl.wait(
        lambda: ", ".join(admission_webhook.replicas(cluster) & before) or None,
        "the former replicas to be gone",
    )
    for text in ca_bundles(cluster):
        bundle = x509.load_pem_x509_certificates(base64.b64decode(text))
        assert [each.serial_number for each in bundle] == [
            old.certificate.serial_number,
            new.certificate.serial_number,
        ]
    print(f"{stream.count} applies while replicas, certificate and authority were replaced")


class Stream:
    """Claims that are applied one after another, right and wrong ones in turn."""

    def __init__(self, pods: Kubectl) -> None:
        self.count = 0
        self.failures: list[str] = []
        self._pods = pods

    def run(self, stop: threading.Event) -> None:
        """Apply until told to stop, and note each answer that is not as it should be."""
        while not stop.is_set():
            for config, is_right in ((RIGHT, True), (WRONG, False)):
                done = self._pods.run_unchecked(*create(), text=text(self._pods, config))
                is_so = done.returncode == 0 if is_right else "Longish" in done.stderr
                if not is_so:
                    self.failures.append(done.stderr or done.stdout)
                self.count += 1

    def wait_for(self, more: int) -> None:
        """Wait for so many more answers."""
        wanted = self.count + more
        self._pods.wait(
            lambda: None if self.count >= wanted else str(self.count), f"{wanted} answers"
        )


@contextmanager
def applying(pods: Kubectl) -> Iterator[Stream]:
    """Apply claims of which none is stored, while the block runs."""
    stream = Stream(pods)
    with background.running(stream.run):
        stream.wait_for(4)
        yield stream


def try_to_create(pods: Kubectl) -> subprocess.CompletedProcess[str]:
    return pods.run_unchecked(*create(), text=text(pods, RIGHT))


def create() -> tuple[str, ...]:
    return ("apply", "--dry-run=server", "-f", "-")


def text(pods: Kubectl, config: Json) -> str:
    """The manifest of a claim in the version that the cluster serves."""
    return as_served(pods, claim(config))


def as_served(pods: Kubectl, manifest: Json) -> str:
    return json.dumps(api_versions.convert_manifest(manifest, pods.resource_api_version))


def scale(cluster: Cluster, replicas: int) -> None:
    cluster.driver_namespace.run(
        "scale", f"deployment/{admission_webhook.NAME}", f"--replicas={replicas}"
    )
    if replicas:
        rolled_out(cluster)
    else:
        cluster.driver_namespace.wait(
            lambda: " ".join(admission_webhook.replicas(cluster)) or None,
            "the webhook's pods to be gone",
        )


def rolled_out(cluster: Cluster) -> None:
    how = ("rollout", "status", f"deployment/{admission_webhook.NAME}", "--timeout=100s")
    cluster.driver_namespace.run(*how, timeout_s=110)


def secret(cluster: Cluster) -> Json:
    found = cluster.driver_namespace.get("secret", f"{admission_webhook.NAME}-cert")
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{admission_webhook.NAME}-cert", "namespace": NAMESPACE},
        "data": found["data"],
    }


def ca_bundles(cluster: Cluster) -> list[str]:
    """The CA that API servers trust for each entry of the registration."""
    found = cluster.kubectl.get(
        "validatingwebhookconfiguration", f"{admission_webhook.NAME}-config"
    )
    bundles = [each["clientConfig"]["caBundle"] for each in found["webhooks"]]
    assert len(bundles) == 2
    return bundles


def not_served_by(cluster: Cluster, signer: authority.Authority) -> str | None:
    """Why not every replica serves with a certificate of that authority; None if all do."""
    data = secret(cluster)["data"]
    serving = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
    if serving.issuer != signer.certificate.subject:
        return f"the Secret's certificate is by {serving.issuer.rfc4514_string()}"
    return admission_webhook.not_serving(cluster, serving.serial_number)
