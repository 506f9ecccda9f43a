# SPDX-License-Identifier: Apache-2.0
"""The webhook's server with its endpoints in the process of the test, asked by HTTPS."""

import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
from nvdra_api.gates import FeatureGates
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.certificates import authority
from nvdra_webhook.certificates.tls import TlsKeyPair
from nvdra_webhook.endpoints import VALIDATE_PATH, Endpoints
from nvdra_webhook.metrics import WebhookMetrics
from nvdra_webhook.serving import server
from nvdra_webhook.serving.connection import Limits


@dataclass(frozen=True)
class Answer:
    """An HTTP response."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def response(self) -> Any:
        """`response` of the AdmissionReview."""
        review = json.loads(self.text)
        assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert set(review) == {"apiVersion", "kind", "response"}
        return review["response"]

    @property
    def message(self) -> str:
        """Why the request was denied; empty if it was not."""
        response = self.response
        return "" if response["allowed"] else str(response["status"]["message"])


@dataclass(frozen=True)
class ServedWebhook:
    """A server that listens.

    Attributes:
        address: `host:port`.
        metrics: Its metrics.
        client: Trusts its certificate.
    """

    address: str
    metrics: WebhookMetrics
    client: aiohttp.ClientSession

    async def request(
        self, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
    ) -> Answer:
        """Send a request."""
        headers = {"Content-Type": content_type}
        url = f"https://{self.address}{path}"
        async with self.client.request(method, url, data=body, headers=headers) as answer:
            return Answer(answer.status, await answer.text(), dict(answer.headers))

    async def review(self, body: bytes) -> Answer:
        """Ask for a verdict."""
        answer = await self.request("POST", f"{VALIDATE_PATH}?timeout=10s", body)
        assert answer.status == 200, answer
        return answer


@asynccontextmanager
async def serving(
    gates: str = "",
    *,
    cluster: ClusterNames | None = None,
    limits: Limits | None = None,
    not_ready: str | None = None,
) -> AsyncIterator[ServedWebhook]:
    """Serve with these feature gates, which no other server shares."""
    known = cluster or ClusterNames()
    metrics = WebhookMetrics()
    endpoints = Endpoints(
        FeatureGates.parse(gates),
        lambda: known,
        {"certificate": lambda: not_ready},
        metrics,
        time.perf_counter,
    )
    now = datetime.now(UTC)
    signer = authority.create(now)
    tls = TlsKeyPair("VersionTLS12", lambda: datetime.now(UTC))
    tls.use(authority.issue(signer, ["localhost"], now))
    trusted = ssl.create_default_context(cadata=signer.certificate_pem.decode())
    async with (
        server.serve(
            "127.0.0.1",
            0,
            tls.context,
            endpoints.respond,
            limits or Limits(8 << 20),
            metrics.internal_error,
            metrics.process.connection_dropped,
        ) as address,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as client,
    ):
        yield ServedWebhook(address.replace("127.0.0.1", "localhost"), metrics, client)
