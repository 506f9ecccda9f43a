"""An installation whose certificate cert-manager issues instead of the webhook itself."""

import base64
import json
from pathlib import Path

import pytest
from cryptography import x509
from nvdra_testing.cluster import api_versions, cert_manager, workloads
from nvdra_testing.cluster.installation import CHART, NAMESPACE, RELEASE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NAME = f"{RELEASE}-webhook"
SECRET = f"{NAME}-cert"
REPLICAS = 2
RENEWED_S = 120
"""The kubelet looks for changes of a mounted Secret every minute or so."""


@pytest.mark.soak("builds cert-manager")
@pytest.mark.timeout(900, func_only=True)
def test_cert_manager_issues_the_certificate_and_renews_it_without_a_restart(
    cluster: Cluster, pods: Kubectl, tmp_path: Path
) -> None:
    with cert_manager.defined(cluster):
        try:
            with cert_manager.running(cluster, tmp_path):
                upgrade_to(cluster, "cert-manager")
                first = issued(cluster)
                wait_trusted(pods)
                code, lines = cluster.helm_test()
                assert code == 0, "\n".join(lines)
                cluster.kubectl.wait(
                    lambda: None if len(webhooks(cluster)) == REPLICAS else "more", "the rollout"
                )
                before = webhooks(cluster)
                cluster.driver_namespace.delete("secret", SECRET)  # which makes it issue another
                refused: list[str] = []

                def renewing() -> str | None:
                    refused.extend(filter(None, [not_refused(pods)]))
                    return not_served(cluster, other_than=first)

                cluster.kubectl.wait(renewing, "every replica to serve with the new one", RENEWED_S)
                wait_trusted(pods)
                assert refused == []
                assert webhooks(cluster) == before
        finally:
            # As docs/operations.md says.
            what = ("certificate,secret", SECRET, f"{NAME}-ca", "--ignore-not-found")
            cluster.driver_namespace.run("delete", *what)
            upgrade_to(cluster, "self-managed")
    wait_trusted(pods)


def upgrade_to(cluster: Cluster, mode: str) -> None:
    """Change who makes the webhook's certificate."""
    where = ("--namespace", NAMESPACE, "--wait", "--reuse-values")
    cluster.helm("upgrade", RELEASE, str(CHART), *where, f"--set=webhook.tls.mode={mode}")


def wait_trusted(pods: Kubectl) -> None:
    """Wait until the API server asks the webhook again."""
    pods.wait(lambda: not_refused(pods), "the API server to trust the webhook", RENEWED_S)


def issued(cluster: Cluster) -> int:
    """The serial number of the certificate in the Secret, which cert-manager has issued."""
    found = cluster.driver_namespace.get("secret", SECRET)
    assert found["metadata"]["annotations"]["cert-manager.io/certificate-name"] == SECRET
    certificate = x509.load_pem_x509_certificate(base64.b64decode(found["data"]["tls.crt"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"{NAME}.{NAMESPACE}.svc" in names.get_values_for_type(x509.DNSName)
    return certificate.serial_number


def webhooks(cluster: Cluster) -> set[str]:
    """The names of the webhook's pods."""
    selector = f"app.kubernetes.io/name=webhook,app.kubernetes.io/instance={RELEASE}"
    found = cluster.driver_namespace.get("pods", "", "-l", selector)
    return {pod["metadata"]["name"] for pod in found}


def not_served(cluster: Cluster, other_than: int) -> str | None:
    """Why not every replica serves with a new certificate; None if all do."""
    found = cluster.driver_namespace.run_unchecked("get", "secret", SECRET)
    if found.returncode:
        return found.stderr
    serial = issued(cluster)
    if serial == other_than:
        return "the Secret has the first one"
    for pod in webhooks(cluster):
        if f"{serial:x}" not in cluster.driver_namespace.run_unchecked("logs", pod).stdout:
            return f"{pod} does not serve with {serial:x}"
    return None


def not_refused(pods: Kubectl) -> str | None:
    """What is said of a wrong claim, if it is not what the webhook says."""
    wrong = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharng": {}}
    claim = workloads.claim("c", workloads.gpus())
    claim["spec"]["devices"]["config"] = [
        {"opaque": {"driver": "gpu.nvidia.com", "parameters": wrong}}
    ]
    text = json.dumps(api_versions.convert_manifest(claim, pods.resource_api_version))
    done = pods.run_unchecked("apply", "--dry-run=server", "-f", "-", text=text)
    return None if 'did you mean "sharing"?' in done.stderr else done.stderr or "it is taken"
