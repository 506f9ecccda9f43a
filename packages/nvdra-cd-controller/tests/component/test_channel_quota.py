"""A ResourceQuota of a namespace limits how many channels its claims can hold."""

import urllib.error
from typing import Any

import pytest
from nvdra_api import names
from nvdra_testing.control_plane import domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer

LIMITED = f"{names.CHANNEL_CLASS}.deviceclass.resource.k8s.io/devices"


def claim(name: str) -> dict[str, Any]:
    request = {"name": "channel", "exactly": {"deviceClassName": names.CHANNEL_CLASS}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


def test_claims_of_channels_beyond_the_quota_are_refused(server: ApiServer) -> None:
    team = domain_objects.create_namespace(server)
    quotas = f"/api/v1/namespaces/{team}/resourcequotas"
    body = {"metadata": {"name": "channels"}, "spec": {"hard": {LIMITED: "1"}}}
    quota = server.create(quotas, body)
    # What the quota controller does, which does not run here.
    quota["status"] = {"hard": {LIMITED: "1"}, "used": {LIMITED: "0"}}
    server.request("PUT", f"{quotas}/channels/status", quota)
    claims = f"/apis/resource.k8s.io/v1/namespaces/{team}/resourceclaims"
    server.create(claims, claim("first"))
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.create(claims, claim("second"))
    assert refused.value.code == 403
    assert f"exceeded quota: channels, requested: {LIMITED}=1" in refused.value.read().decode()
