# SPDX-License-Identifier: Apache-2.0
"""A ResourceQuota of a namespace limits how many channels its claims can hold."""

import itertools
import urllib.error
from typing import Any

from nvdra_api import names
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.polling import wait_until

LIMITED = f"{names.CHANNEL_CLASS}.deviceclass.resource.k8s.io/devices"


def claim(name: str) -> dict[str, Any]:
    request = {"name": "channel", "exactly": {"deviceClassName": names.CHANNEL_CLASS}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


async def test_claims_of_channels_beyond_the_quota_are_refused(server: ApiServer) -> None:
    team = domain_objects.create_namespace(server)
    quotas = f"/api/v1/namespaces/{team}/resourcequotas"
    body = {"metadata": {"name": "channels"}, "spec": {"hard": {LIMITED: "1"}}}
    quota = server.create(quotas, body)
    # What the quota controller does, which does not run here.
    quota["status"] = {"hard": {LIMITED: "1"}, "used": {LIMITED: "0"}}
    server.request("PUT", f"{quotas}/channels/status", quota)
    claims = f"/apis/resource.k8s.io/v1/namespaces/{team}/resourceclaims"
    numbers = itertools.count()
    refusals: list[str] = []

    def refused() -> bool:
        try:
            server.create(claims, claim(f"claim-{next(numbers)}"))
        except urllib.error.HTTPError as error:
            refusals.append(error.read().decode())
        return bool(refusals)

    # Claims are admitted without being counted until the API server's own watch has seen the
    # quota: its plugin keeps for 30 s the empty list that it read when the quota was created.
    await wait_until(refused)
    assert f"exceeded quota: channels, requested: {LIMITED}=1" in refusals[0]
    assert server.request("GET", f"{quotas}/channels")["status"]["used"] == {LIMITED: "1"}
