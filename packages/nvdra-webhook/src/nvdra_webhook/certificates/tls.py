# SPDX-License-Identifier: Apache-2.0
"""The TLS settings of the server, whose key pair can be replaced while it runs.

New handshakes use the new pair; connections that exist are not touched.
"""

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from nvdra_runtime.telemetry import logs

from nvdra_webhook.certificates.key_pair import KeyPair, KeyPairError

LOG: Final = logs.logger(__name__)

VERSIONS: Final = {
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}
"""Values of `--tls-min-version`, as Kubernetes components write them."""


class TlsKeyPair:
    """The key pair in use, and the context that has it."""

    def __init__(self, min_version: str, now: Callable[[], datetime]) -> None:
        self._min_version = VERSIONS[min_version]
        self._now = now
        self.context = self._new_context()
        self._current: KeyPair | None = None

    def use(self, pair: KeyPair) -> None:
        """Use this pair from the next handshake on.

        Raises:
            KeyPairError: OpenSSL does not take it; the former one stays.
        """
        if self._current == pair:
            return
        # A pair that is refused halfway would leave a context with a key of another certificate.
        _load(self._new_context(), pair)
        _load(self.context, pair)
        self._current = pair
        LOG.info(
            "Using a certificate",
            serial=f"{pair.certificate.serial_number:x}",
            names=sorted(pair.dns_names),
            not_after=pair.not_after.isoformat(),
        )

    def problem(self) -> str | None:
        """Why clients cannot connect; None if they can. A check of `/readyz`."""
        if self._current is None:
            return "there is no certificate yet"
        if self._current.not_after <= self._now():
            return f"the certificate expired at {self._current.not_after.isoformat()}"
        return None

    def not_after_s(self) -> float | None:
        """When the certificate expires, in seconds since 1970; None if there is none."""
        return None if self._current is None else self._current.not_after.timestamp()

    def remaining(self) -> timedelta | None:
        """How long the certificate is valid; None if there is none."""
        return None if self._current is None else self._current.not_after - self._now()

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self._min_version
        context.set_alpn_protocols(["http/1.1"])
        return context


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    with (
        _memory_file("certificate", pair.certificate_pem) as certificate,
        _memory_file("key", pair.key_pem) as key,
    ):
        try:
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise KeyPairError(f"OpenSSL refuses the key pair: {error}") from error


@contextmanager
def _memory_file(name: str, content: bytes) -> Iterator[str]:
    """Yield the path of a file in memory. Python's ssl takes paths only.

    The root file system is read-only, and the key is to be on no other one.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
