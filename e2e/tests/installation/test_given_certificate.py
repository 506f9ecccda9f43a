# SPDX-License-Identifier: Apache-2.0
"""An installation whose webhook serves a certificate that its administrator has made."""

import base64
from datetime import UTC, datetime

from nvdra_testing.cluster import admission_webhook
from nvdra_testing.cluster.installation import NAMESPACE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_webhook.certificates import authority

SECRET = "given"


def test_the_certificate_of_a_secret_is_served_and_trusted(cluster: Cluster, pods: Kubectl) -> None:
    now = datetime.now(UTC)
    signer = authority.create(now)
    pair = authority.issue(signer, [admission_webhook.SERVICE], now)
    files = {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem}
    cluster.driver_namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": SECRET, "namespace": NAMESPACE},
            "data": {name: base64.b64encode(text).decode() for name, text in files.items()},
        }
    )
    bundle = base64.b64encode(signer.certificate_pem).decode()
    try:
        admission_webhook.use_certificate(
            cluster,
            "secret",
            f"--set=webhook.tls.secret.name={SECRET}",
            f"--set-string=webhook.tls.secret.caBundle={bundle}",
        )
        admission_webhook.wait_trusted(pods)
        cluster.driver_namespace.wait(
            lambda: admission_webhook.not_serving(cluster, pair.certificate.serial_number),
            "every replica to serve with it",
        )
    finally:
        nothing = ("--set=webhook.tls.secret.name=", "--set=webhook.tls.secret.caBundle=")
        admission_webhook.use_certificate(cluster, "self-managed", *nothing)
        cluster.driver_namespace.delete("secret", SECRET)
    admission_webhook.wait_trusted(pods)
