# SPDX-License-Identifier: Apache-2.0
"""Key pairs that the replicas make themselves, in one Secret that each reads and writes.

The chart makes the Secret, empty, so that no replica needs the right to create any. A replica
that finds something due writes it; of two that write at once the API server takes one, and the
other reads again. Then the configuration gets the `caBundle`, and last the server the pair.
"""

import asyncio
import base64
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from nvdra_api.errors import DriverError
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import Conflict
from nvdra_runtime.process.backoff import Backoff
from nvdra_runtime.telemetry import logs

from nvdra_webhook.certificates import rotation
from nvdra_webhook.certificates.key_pair import KeyPairError
from nvdra_webhook.certificates.tls import TlsKeyPair

LOG: Final = logs.logger(__name__)

LOOK_S: Final = 30.0
_BACKOFF: Final = Backoff(first_s=0.5, ceiling_s=LOOK_S)
_TIMEOUT_S: Final = 10.0
_CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_STRATEGIC: Final = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class Places:
    """Where certificates are kept and published.

    Attributes:
        namespace: Namespace of the Secret.
        secret: Its name.
        configuration: Name of the ValidatingWebhookConfiguration.
        dns_names: The names that API servers connect to.
    """

    namespace: str
    secret: str
    configuration: str
    dns_names: Collection[str]

    @property
    def secret_path(self) -> str:
        """The path of the Secret."""
        return f"/api/v1/namespaces/{self.namespace}/secrets/{self.secret}"

    @property
    def configuration_path(self) -> str:
        """The path of the configuration."""
        return f"{_CONFIGURATIONS}/{self.configuration}"


class ManagedKeyPairs:
    """Keeps the Secret, the configuration and the server's key pair in step."""

    def __init__(
        self,
        api: Client,
        places: Places,
        tls: TlsKeyPair,
        now: Callable[[], datetime],
        on_failure: Callable[[], None],
    ) -> None:
        """Know the places.

        Args:
            api: The API server.
            places: Where certificates are kept and published.
            tls: Gets the pairs.
            now: The time.
            on_failure: Called for each attempt that failed.
        """
        self._api = api
        self._places = places
        self._tls = tls
        self._now = now
        self._on_failure = on_failure

    async def follow(self) -> None:
        """Look at the Secret again and again. Run until cancelled."""
        failures = 0
        while True:
            try:
                await self.look()
                failures = 0
                pause_s = LOOK_S * (0.9 + 0.2 * random.random())  # noqa: S311 - spreads load
            except (DriverError, KeyPairError) as error:
                failures += 1
                pause_s = _BACKOFF.delay(failures, random.random())  # noqa: S311 - likewise
                if not isinstance(error, Conflict):
                    self._on_failure()
                    LOG.warning(
                        "Cannot keep the certificates; those in use stay",
                        secret=self._places.secret,
                        configuration=self._places.configuration,
                        error=str(error),
                    )
            await asyncio.sleep(pause_s)

    async def look(self) -> None:
        """Do what is due, and use what there is.

        Raises:
            Conflict: Another replica was faster.
            DriverError: The API server does not answer, or does not let us.
            KeyPairError: The Secret has a key that cannot be used.
        """
        secret = await self._api.get(self._places.secret_path, _deadline())
        configuration = await self._api.get(self._places.configuration_path, _deadline())
        published = _bundles(configuration)
        now = self._now()
        found, problems = rotation.from_data(secret.get("data") or {}, now)
        for problem in problems:
            LOG.warning(
                "Part of the Secret is replaced", secret=self._places.secret, problem=problem
            )
        least = min(published.values(), key=len, default=b"")
        wanted = rotation.next_keys(found, self._places.dns_names, least, now)
        if wanted != found or problems:
            # The resourceVersion that was read makes the API server refuse the second of two.
            await self._api.replace(
                self._places.secret_path, {**secret, "data": wanted.to_data()}, _deadline()
            )
            LOG.info(
                "Stored certificates",
                secret=self._places.secret,
                authorities=len(wanted.authorities),
            )
        if any(bundle != wanted.bundle for bundle in published.values()):
            await self._publish(published, wanted.bundle)
        if wanted.serving is not None:
            self._tls.use(wanted.serving)

    async def _publish(self, published: Mapping[str, bytes], bundle: bytes) -> None:
        text = base64.b64encode(bundle).decode()
        webhooks = [{"name": name, "clientConfig": {"caBundle": text}} for name in published]
        await self._api.patch(
            self._places.configuration_path, {"webhooks": webhooks}, _deadline(), _STRATEGIC
        )
        LOG.info("Published the CA bundle", configuration=self._places.configuration)


def _bundles(configuration: Mapping[str, Any]) -> dict[str, bytes]:
    """The `caBundle` of each webhook, by name."""
    return {
        webhook["name"]: base64.b64decode(webhook["clientConfig"].get("caBundle", ""))
        for webhook in configuration.get("webhooks") or ()
    }


def _deadline() -> float:
    return asyncio.get_running_loop().time() + _TIMEOUT_S
