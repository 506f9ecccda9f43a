# SPDX-License-Identifier: Apache-2.0
"""Reads what the checks are about from the API server, with the rights of the tests of the charts.

The webhook is tried with claims that are not stored (`dryRun=All`): a right one and a wrong one.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from nvdra_api.errors import DriverError
from nvdra_api.meta import JsonObject
from nvdra_api.names import GPU_DRIVER, NVIDIA_API_VERSION

from nvdra_runtime.computedomain import failed_creates
from nvdra_runtime.installation import findings, placement
from nvdra_runtime.installation.findings import Checks, Deployment, Finding, Plugin, Webhook
from nvdra_runtime.installation.placement import TaintedNode
from nvdra_runtime.kube import apiversions
from nvdra_runtime.kube.client import Client
from nvdra_runtime.kube.errors import Invalid, NotFound, NotServed

_TIMEOUT_S: Final = 15.0
_PAGE: Final = 250
_RIGHT: Final = {"apiVersion": NVIDIA_API_VERSION, "kind": "GpuConfig"}
_WRONG: Final = {**_RIGHT, "sharing": {"strategy": "NoSuchStrategy"}}


class Checker:
    """Performs checks."""

    def __init__(self, api: Client, checks: Checks) -> None:
        """Know the API server and what to check."""
        self._api = api
        self._checks = checks

    async def look(self) -> list[Finding]:
        """Perform every check once."""
        version = await self._api.dra_api_version(_deadline())
        found = [await self._device_class(version, name) for name in self._checks.device_classes]
        found += [await self._api_version(each) for each in self._checks.api_versions]
        found += [await self._deployment(deployment) for deployment in self._checks.deployments]
        for plugin in self._checks.plugins:
            found += await self._plugin(version, plugin)
        for webhook in self._checks.webhooks:
            found += await self._webhook(version, webhook)
        return found

    async def _device_class(self, version: str, name: str) -> Finding:
        path = f"{apiversions.GROUP_PATH}/{version}/deviceclasses/{name}"
        try:
            await self._api.get(path, _deadline())
        except NotFound:
            return Finding(
                text=f"there is no DeviceClass {name}",
                remedy="it is of this release and somebody has deleted it: run helm upgrade",
            )
        except DriverError as error:
            return _failure(error)
        return Finding(text=f"DeviceClass {name} exists")

    async def _api_version(self, group_version: str) -> Finding:
        try:
            await self._api.get(f"/apis/{group_version}", _deadline())
        except (NotFound, NotServed):
            return Finding(
                text=f"the API server does not serve {group_version}",
                remedy="the controller of ComputeDomains installs its CustomResourceDefinitions "
                "when it leads, unless crds.install=never: its log says what keeps it from it",
            )
        except DriverError as error:
            return _failure(error)
        return Finding(text=f"the API server serves {group_version}")

    async def _deployment(self, deployment: Deployment) -> Finding:
        path = f"/apis/apps/v1/namespaces/{deployment.namespace}/deployments/{deployment.name}"
        try:
            stored = await self._api.get(path, _deadline())
        except DriverError as error:
            return _failure(error)
        return findings.of_deployment(deployment, stored)

    async def _plugin(self, version: str, plugin: Plugin) -> list[Finding]:
        path = f"/api/v1/namespaces/{plugin.namespace}/pods"
        selector = {"fieldSelector": f"spec.driver={plugin.driver}"}
        try:
            pods = await self._list(path, {"labelSelector": plugin.selector})
            slices = await self._list(apiversions.slices_path(version), selector)
            refused = "" if pods else await self._refused_pod(plugin)
            nodes = await self._nodes(plugin)
        except DriverError as error:
            return [_failure(error)]
        as_v1 = [apiversions.slice_from_version(version, each) for each in slices]
        return findings.of_plugin(plugin, pods, as_v1, refused, nodes)

    async def _refused_pod(self, plugin: Plugin) -> str:
        """What the last Event says of a pod that the plugin's DaemonSet could not create."""
        selector = {"fieldSelector": failed_creates.selector(plugin.daemonset)}
        events = await self._list(f"/api/v1/namespaces/{plugin.namespace}/events", selector)
        latest = failed_creates.latest(events)
        return "" if latest is None else failed_creates.cause(latest)

    async def _webhook(self, version: str, webhook: Webhook) -> list[Finding]:
        path = f"{apiversions.GROUP_PATH}/{version}/namespaces/{webhook.claim_namespace}"
        path = f"{path}/resourceclaims?dryRun=All"
        try:
            await self._api.create(path, _claim(version, _WRONG), _deadline())
        except DriverError as error:
            if isinstance(error, Invalid) or findings.NOT_CALLED in error.message:
                found = findings.of_refusal(webhook, error.message)
            else:
                found = _failure(error)
        else:
            found = findings.of_refusal(webhook, None)
        if not found.is_good:
            return [found]
        try:
            await self._api.create(path, _claim(version, _RIGHT), _deadline())
        except DriverError as error:
            return [found, _failure(error)]
        return [found, Finding(text="the webhook lets a claim with a right config in")]

    async def _nodes(self, plugin: Plugin) -> list[TaintedNode]:
        """The nodes that a plugin is for, once each."""
        found: dict[str, TaintedNode] = {}
        for query in placement.queries(plugin.placement) if plugin.placement else ():
            async for page in self._pages("/api/v1/nodes", query):
                # The rest of a node is many times as large.
                found |= {each.name: each for each in map(placement.of_node, page)}
        return list(found.values())

    async def _list(self, path: str, selector: dict[str, str]) -> list[JsonObject]:
        return [item async for page in self._pages(path, selector) for item in page]

    async def _pages(
        self, path: str, selector: dict[str, str]
    ) -> AsyncGenerator[list[JsonObject], None]:
        token = ""
        while True:
            params = {"limit": str(_PAGE), **selector, **({"continue": token} if token else {})}
            page = await self._api.get(path, _deadline(), params)
            yield page.get("items") or []
            token = (page.get("metadata") or {}).get("continue", "")
            if not token:
                return


def _claim(version: str, parameters: JsonObject) -> JsonObject:
    """A claim for a GPU with a config, in the given version."""
    wanted = {"deviceClassName": GPU_DRIVER}
    request: dict[str, Any] = {"name": "gpu"}
    request |= wanted if version == "v1beta1" else {"exactly": wanted}
    config = {"opaque": {"driver": GPU_DRIVER, "parameters": parameters}}
    return {
        "apiVersion": apiversions.group_version(version),
        "kind": "ResourceClaim",
        "metadata": {"generateName": "nvdra-test-"},
        "spec": {"devices": {"requests": [request], "config": [config]}},
    }


def _failure(error: DriverError) -> Finding:
    remedy = error.remedy or "the API server's message says what it does not accept"
    return Finding(text=error.message, remedy=remedy)


def _deadline() -> float:
    return asyncio.get_running_loop().time() + _TIMEOUT_S
