# SPDX-License-Identifier: Apache-2.0
"""When certificates and their authority are replaced: never by one that an API server distrusts.

A new authority is published in the `caBundle` beside the former one. It signs once API servers have
had time to read that; the former one is taken out of the bundle a day after the last certificate
that it has signed was replaced. `docs/decisions/webhook.md` has the reasons.
"""

import base64
import binascii
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

from nvdra_webhook.certificates import authority, key_pair
from nvdra_webhook.certificates.authority import BACKDATED, Authority
from nvdra_webhook.certificates.key_pair import KeyPair, KeyPairError

PUBLISHED_FIRST: Final = timedelta(minutes=10)
"""From the making of an authority until it signs. API servers read the configuration by a watch,
within seconds; all replicas look at the Secret meanwhile."""
KEPT: Final = timedelta(days=1)
"""From the first certificate of the new authority until the bundle has no longer the former one.
Replicas read the Secret within a minute; one that cannot, for hours, still serves what is trusted.
"""

CA_CERTIFICATES, CA_KEYS, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
"""Keys of the Secret. The first two have all authorities, the oldest first."""

_END: Final = b"-----END "


@dataclass(frozen=True, slots=True)
class Keys:
    """What the Secret has.

    Attributes:
        authorities: The oldest first.
        serving: What replicas serve with; None before the first.
    """

    authorities: tuple[Authority, ...] = ()
    serving: KeyPair | None = None

    @property
    def bundle(self) -> bytes:
        """The certificates that API servers should trust, in PEM."""
        return b"".join(each.certificate_pem for each in self.authorities)

    def to_data(self) -> dict[str, str]:
        """The `data` of the Secret."""
        data = {CA_CERTIFICATES: self.bundle}
        data[CA_KEYS] = b"".join(each.key_pem for each in self.authorities)
        if self.serving is not None:
            data |= {CERTIFICATE: self.serving.certificate_pem, KEY: self.serving.key_pem}
        return {name: base64.b64encode(content).decode() for name, content in data.items()}


def from_data(data: Mapping[str, str], now: datetime) -> tuple[Keys, tuple[str, ...]]:
    """Read the `data` of the Secret.

    Returns:
        What of it can be used, and why other parts cannot.
    """
    problems: list[str] = []

    def content(name: str) -> bytes:
        try:
            return base64.b64decode(data.get(name, ""), validate=True)
        except binascii.Error:
            problems.append(f"{name} is not base64")
            return b""

    authorities: list[Authority] = []
    certificates, keys = _blocks(content(CA_CERTIFICATES)), _blocks(content(CA_KEYS))
    if len(certificates) != len(keys):
        problems.append(f"{CA_CERTIFICATES} has {len(certificates)} parts, {CA_KEYS} {len(keys)}")
    for certificate_pem, key_pem in zip(certificates, keys, strict=False):
        try:
            authorities.append(authority.parse(certificate_pem, key_pem, now))
        except KeyPairError as error:
            problems.append(f"{CA_CERTIFICATES}: {error}")
    serving = None
    if data.get(CERTIFICATE):
        try:
            serving = key_pair.parse(content(CERTIFICATE), content(KEY), now)
        except KeyPairError as error:
            problems.append(f"{CERTIFICATE}: {error}")
    return Keys(tuple(authorities), serving), tuple(problems)


def next_keys(keys: Keys, dns_names: Collection[str], published: bytes, now: datetime) -> Keys:
    """Return what the Secret should have now; the same if nothing is due.

    Args:
        keys: What it has.
        dns_names: The names that API servers connect to.
        published: The `caBundle` of the configuration.
        now: The time.
    """
    authorities = keys.authorities
    if not authorities or _is_due(authorities[-1].certificate, now):
        authorities = (*authorities, authority.create(now))
    signer = _signer(authorities, published, now)
    serving = keys.serving
    if (
        serving is None
        or serving.dns_names != frozenset(dns_names)
        or not signer.has_signed(serving)
        or _is_due(serving.certificate, now)
    ):
        serving = authority.issue(signer, dns_names, now)
    if now - (serving.certificate.not_valid_before_utc + BACKDATED) >= KEPT:
        authorities = authorities[authorities.index(signer) :]
    return Keys(authorities, serving)


def _signer(authorities: tuple[Authority, ...], published: bytes, now: datetime) -> Authority:
    """The newest authority that every API server knows; the oldest if none is known yet."""
    for each in reversed(authorities):
        if each.certificate_pem in published and now - each.created >= PUBLISHED_FIRST:
            return each
    return authorities[0]


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether two thirds of its life have passed."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= begin + (end - begin) * 2 / 3


def _blocks(pem: bytes) -> list[bytes]:
    """The blocks of a PEM text, one for each object."""
    blocks: list[bytes] = []
    lines: list[bytes] = []
    for line in pem.splitlines(keepends=True):
        lines.append(line)
        if line.startswith(_END):
            blocks.append(b"".join(lines).lstrip())
            lines = []
    return blocks
