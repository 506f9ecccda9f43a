# SPDX-License-Identifier: Apache-2.0
"""The key pair of two files: used when it is right, kept when the next one is wrong."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from nvdra_webhook.certificates import authority
from nvdra_webhook.certificates.files import KeyPairFiles
from nvdra_webhook.certificates.key_pair import KeyPair
from nvdra_webhook.certificates.tls import TlsKeyPair

NOW = datetime.now(UTC)
SIGNER = authority.create(NOW)


class World:
    def __init__(self, folder: Path) -> None:
        self.now = NOW
        self.failures = 0
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        self.tls = TlsKeyPair("VersionTLS12", lambda: self.now)
        self.files = KeyPairFiles(
            self.certificate, self.key, self.tls, lambda: self.now, self._failed
        )

    def _failed(self) -> None:
        self.failures += 1

    def write(self, pair: KeyPair, key: bytes | None = None) -> None:
        self.certificate.write_bytes(pair.certificate_pem)
        self.key.write_bytes(pair.key_pem if key is None else key)

    def look(self, times: int) -> None:
        for _ in range(times):
            self.files.look()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def issued() -> KeyPair:
    return authority.issue(SIGNER, ["localhost"], NOW)


def test_files_that_come_later_are_used(world: World) -> None:
    world.look(3)
    assert world.tls.problem() == "there is no certificate yet"
    assert world.failures == 1
    world.write(issued())
    world.look(1)
    assert world.tls.problem() is None
    assert world.tls.not_after_s() == pytest.approx((NOW + timedelta(days=90)).timestamp(), abs=1)


def test_a_pair_that_is_wrong_keeps_the_former_one_and_is_reported_once(world: World) -> None:
    world.write(issued())
    world.look(1)
    before = world.tls.not_after_s()
    world.write(issued(), issued().key_pem)
    world.look(1)
    assert world.failures == 0  # the kubelet may be between the two files
    world.look(4)
    assert world.failures == 1
    assert (world.tls.problem(), world.tls.not_after_s()) == (None, before)


def test_a_certificate_that_expires_makes_the_webhook_unready(world: World) -> None:
    world.write(issued())
    world.look(1)
    world.now = NOW + timedelta(days=91)
    assert "expired at" in str(world.tls.problem())
