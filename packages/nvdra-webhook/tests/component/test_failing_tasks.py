# SPDX-License-Identifier: Apache-2.0
"""What fails unexpectedly in one task of the webhook ends neither it nor another task."""

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from nvdra_testing.admission import reviews, webhook_process
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.faults import task_faults
from nvdra_testing.faults.task_campaign import Campaign
from nvdra_testing.polling import wait_until
from nvdra_webhook.certificates import authority
from nvdra_webhook.endpoints import VALIDATE_PATH

PROGRAM = "nvdra-webhook"


async def test_each_exception_in_each_task_leaves_the_others_and_requests_answered(
    tmp_path: Path, shared_apiserver: ApiServer
) -> None:
    now = datetime.now(UTC)
    signer = authority.create(now)
    pair = authority.issue(signer, ["localhost"], now)
    (tmp_path / "tls.crt").write_bytes(pair.certificate_pem)
    (tmp_path / "tls.key").write_bytes(pair.key_pem)
    flags = (
        f"--tls-cert-file={tmp_path}/tls.crt",
        f"--tls-private-key-file={tmp_path}/tls.key",
        f"--kubeconfig={shared_apiserver.kubeconfig}",
        "--cluster-lookup-interval=5m",
        "--shutdown-grace-period=0s",
    )
    variables = task_faults.environment(tmp_path)
    with webhook_process.run_webhook(tmp_path, *flags, variables=variables) as webhook:
        await wait_until(webhook.is_ready)
        tasks = task_faults.connect(tmp_path, PROGRAM)
        campaign = Campaign(tasks, lambda: webhook.get("/metrics"))
        names = await asyncio.to_thread(campaign.run)
        assert names == {"certificates", "cluster look", "late connections"}
        text = webhook.get("/readyz?verbose")
        assert "[+]tasks ok: failed unexpectedly and goes on, see the log: " in text
        trusted = ssl.create_default_context(cadata=signer.certificate_pem.decode())
        url = f"https://localhost:{webhook.port}{VALIDATE_PATH}"
        headers = {"Content-Type": "application/json"}
        connector = aiohttp.TCPConnector(ssl=trusted)
        body = reviews.review(reviews.claim_text([]))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(url, data=body, headers=headers) as answer,
        ):
            assert (await answer.json())["response"]["allowed"]
