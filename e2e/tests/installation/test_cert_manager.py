# SPDX-License-Identifier: Apache-2.0
"""An installation whose certificate cert-manager issues instead of the webhook itself."""

import base64
from pathlib import Path

import pytest
from cryptography import x509
from nvdra_testing.cluster import admission_webhook, cert_manager
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.kubectl import Kubectl

SECRET = f"{admission_webhook.NAME}-cert"
REPLICAS = 2


@pytest.mark.soak("builds cert-manager")
@pytest.mark.timeout(900, func_only=True)
def test_cert_manager_issues_the_certificate_and_renews_it_without_a_restart(
    cluster: Cluster, pods: Kubectl, tmp_path: Path
) -> None:
    with cert_manager.defined(cluster):
        try:
            with cert_manager.running(cluster, tmp_path):
                admission_webhook.use_certificate(cluster, "cert-manager")
                first = issued(cluster)
                admission_webhook.wait_trusted(pods)
                code, lines = cluster.helm_test()
                assert code == 0, "\n".join(lines)
                cluster.kubectl.wait(
                    lambda: (
                        None if len(admission_webhook.replicas(cluster)) == REPLICAS else "more"
                    ),
                    "the rollout",
                )
                before = admission_webhook.replicas(cluster)
                cluster.driver_namespace.delete("secret", SECRET)  # which makes it issue another
                refused: list[str] = []

                def renewing() -> str | None:
                    refused.extend(filter(None, [admission_webhook.not_refused(pods)]))
                    return not_served(cluster, other_than=first)

                cluster.kubectl.wait(
                    renewing, "every replica to serve with the new one", admission_webhook.TRUSTED_S
                )
                admission_webhook.wait_trusted(pods)
                assert refused == []
                assert admission_webhook.replicas(cluster) == before
        finally:
            # As docs/operations.md says.
            what = (
                "certificate,secret",
                SECRET,
                f"{admission_webhook.NAME}-ca",
                "--ignore-not-found",
            )
            cluster.driver_namespace.run("delete", *what)
            admission_webhook.use_certificate(cluster, "self-managed")
    admission_webhook.wait_trusted(pods)


def issued(cluster: Cluster) -> int:
    """The serial number of the certificate in the Secret, which cert-manager has issued."""
    found = cluster.driver_namespace.get("secret", SECRET)
    assert found["metadata"]["annotations"]["cert-manager.io/certificate-name"] == SECRET
    certificate = x509.load_pem_x509_certificate(base64.b64decode(found["data"]["tls.crt"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert admission_webhook.SERVICE in names.get_values_for_type(x509.DNSName)
    return certificate.serial_number


def not_served(cluster: Cluster, other_than: int) -> str | None:
    """Why not every replica serves with a new certificate; None if all do."""
    found = cluster.driver_namespace.run_unchecked("get", "secret", SECRET)
    if found.returncode:
        return found.stderr
    serial = issued(cluster)
    if serial == other_than:
        return "the Secret has the first one"
    return admission_webhook.not_serving(cluster, serial)
