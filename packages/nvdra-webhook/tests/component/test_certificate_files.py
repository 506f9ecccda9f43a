# SPDX-License-Identifier: Apache-2.0
"""A key pair that is replaced under load costs nobody an answer."""

import asyncio
import contextlib
import os
import ssl
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import aiohttp
from cryptography.hazmat.primitives.serialization import Encoding
from nvdra_testing.admission import reviews, webhook_process
from nvdra_testing.polling import POLL_S, WAIT_S, wait_until
from nvdra_webhook.certificates import authority
from nvdra_webhook.certificates.key_pair import KeyPair
from nvdra_webhook.endpoints import VALIDATE_PATH

BODY = reviews.review(reviews.claim_text([]))


def swap(folder: Path, pair: KeyPair, version: str) -> None:
    """Replace both files at once, as the kubelet does: by a symbolic link."""
    data = folder / version
    data.mkdir()
    (data / "tls.crt").write_bytes(pair.certificate_pem)
    (data / "tls.key").write_bytes(pair.key_pem)
    link = folder / "..new"
    link.symlink_to(data)
    os.replace(link, folder / "..data")  # noqa: PTH105 - as the kubelet


FLAGS = ("--cluster-lookup-interval=0s", "--shutdown-grace-period=500ms")


def file_flags(folder: Path) -> tuple[str, str]:
    return (
        f"--tls-cert-file={folder}/..data/tls.crt",
        f"--tls-private-key-file={folder}/..data/tls.key",
    )


async def test_it_is_not_ready_until_there_is_a_key_pair(tmp_path: Path) -> None:
    async def ready() -> tuple[int, str]:
        """What /readyz answers, once anything listens."""
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get(f"http://{webhook.http}/readyz") as answer:
                    return answer.status, await answer.text()
            await asyncio.sleep(POLL_S)

    with webhook_process.run_webhook(tmp_path, *file_flags(tmp_path), *FLAGS) as webhook:
        async with aiohttp.ClientSession() as session, asyncio.timeout(WAIT_S):
            status, text = await ready()
        assert status == 503
        assert "there is no certificate yet" in text
        now = datetime.now(UTC)
        swap(tmp_path, authority.issue(authority.create(now), ["localhost"], now), "1")
        await wait_until(webhook.is_ready)


async def test_no_request_fails_while_the_certificate_is_replaced(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    signer = authority.create(now)
    swap(tmp_path, authority.issue(signer, ["localhost"], now), "1")
    trusted = ssl.create_default_context(cadata=signer.certificate_pem.decode())
    with webhook_process.run_webhook(tmp_path, *file_flags(tmp_path), *FLAGS) as webhook:
        await wait_until(webhook.is_ready)
        url = f"https://localhost:{webhook.port}{VALIDATE_PATH}"
        answers = {True: 0, False: 0}
        is_over = asyncio.Event()

        def used() -> int:
            return webhook.log.read_text().count("Using a certificate")

        def is_more(before: int) -> bool:
            return used() > before

        def are_more(before: dict[bool, int]) -> bool:
            return all(answers[each] > before[each] + 5 for each in answers)

        async def ask(*, keeps: bool) -> None:
            connector = aiohttp.TCPConnector(ssl=trusted, force_close=not keeps)
            async with aiohttp.ClientSession(connector=connector) as session:
                headers = {"Content-Type": "application/json"}
                while not is_over.is_set():
                    async with session.post(url, data=BODY, headers=headers) as answer:
                        assert answer.status == 200
                        assert (await answer.json())["response"]["allowed"]
                    answers[keeps] += 1

        async with asyncio.TaskGroup() as group:
            for keeps in (True, False, False):
                group.create_task(ask(keeps=keeps))
            await wait_until(lambda: min(answers.values()) > 5)
            for version in ("2", "3"):
                before = used()
                pair = authority.issue(signer, ["localhost"], now)
                swap(tmp_path, pair, version)
                await wait_until(partial(is_more, before))
                _, writer = await asyncio.open_connection("localhost", webhook.port, ssl=trusted)
                served = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                assert served == pair.certificate.public_bytes(Encoding.DER)
                writer.close()
                await wait_until(partial(are_more, dict(answers)))
            is_over.set()
        webhook.process.terminate()
        await wait_until(lambda: not webhook.is_ready(), 5)
        assert await asyncio.to_thread(webhook.process.wait, 20) == 0
