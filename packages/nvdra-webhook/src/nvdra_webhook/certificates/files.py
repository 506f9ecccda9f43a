# SPDX-License-Identifier: Apache-2.0
"""The key pair of two files, as a Secret that is mounted has them. It is read again as it changes.

The kubelet replaces both files at once, by a symbolic link; this reads them one after another and
may meet the change in between, so only what is wrong twice is reported.
Source: docs/reference/webhook.md, "Intended differences".
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from nvdra_runtime.telemetry import logs

from nvdra_webhook.certificates import key_pair
from nvdra_webhook.certificates.key_pair import KeyPairError
from nvdra_webhook.certificates.tls import TlsKeyPair

LOG: Final = logs.logger(__name__)

POLL_S: Final = 2.0
"""Two small files of a memory file system are read at this interval; a watch would not notice
changes of what symbolic links lead to."""


class KeyPairFiles:
    """Watches two files."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        tls: TlsKeyPair,
        now: Callable[[], datetime],
        on_failure: Callable[[], None],
    ) -> None:
        """Know the files.

        Args:
            certificate: PEM file of the certificate, intermediates appended.
            key: PEM file of the private key.
            tls: Gets the pairs.
            now: The time.
            on_failure: Called for each content that cannot be used.
        """
        self._certificate = certificate
        self._key = key
        self._tls = tls
        self._now = now
        self._on_failure = on_failure
        self._last: tuple[bytes, bytes] | str = ""
        self._is_settled = False

    async def follow(self) -> None:
        """Use what the files have, and what they will have. Run until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(POLL_S)

    def look(self) -> None:
        """Use what the files have now, if that has changed and can be used."""
        content: tuple[bytes, bytes] | str
        try:
            content = (self._certificate.read_bytes(), self._key.read_bytes())
        except OSError as error:
            content = str(error)
        is_again, self._last = content == self._last, content
        if is_again and self._is_settled:
            return
        problem = self._use(content)
        self._is_settled = is_again or not problem
        if problem and is_again:
            self._on_failure()
            LOG.warning(
                "Cannot use the key pair of the files; the one in use stays, if there is one",
                certificate=str(self._certificate),
                key=str(self._key),
                error=problem,
            )

    def _use(self, content: tuple[bytes, bytes] | str) -> str:
        """Use a pair. Returns what is wrong with it, or an empty text."""
        if isinstance(content, str):
            return content
        certificate_pem, key_pem = content
        try:
            self._tls.use(key_pair.parse(certificate_pem, key_pem, self._now()))
        except KeyPairError as error:
            return str(error)
        return ""
