# SPDX-License-Identifier: Apache-2.0
"""Admission and prepare say the same about a config, over a thousand of them.

Prepare is what both plugins do with an allocated claim: they resolve its configs and plan.
Admission is the webhook's HTTP handler. The corpus has nothing that only prepare can know: which
devices there are (a limit for another GPU), and what other claims have.
"""

import json
import time
from collections import Counter
from typing import Any

import pytest
from nvdra_api import decoding, names
from nvdra_api.errors import PermanentError
from nvdra_api.gates import UNAVAILABLE_FEATURES, FeatureGates
from nvdra_api.ids import NodeName
from nvdra_api.resource.claims import DeviceRequestAllocationResult, ResourceClaim
from nvdra_api.v1beta1 import DeviceConfig, GpuConfig, MigDeviceConfig
from nvdra_cd_plugin.claims import plan as domain_plan
from nvdra_gpu_plugin.claims import plan as gpu_plan
from nvdra_gpu_plugin.devices import device_names
from nvdra_gpu_plugin.devices.inventory import Inventory
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_runtime.claims import opaque_configs
from nvdra_testing.admission import config_corpus, reviews
from nvdra_testing.admission.config_corpus import CorpusConfig
from nvdra_testing.hardware.gpus import h100, in_mig_mode
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.endpoints import VALIDATE_PATH, Endpoints
from nvdra_webhook.metrics import WebhookMetrics
from nvdra_webhook.serving.exchange import HttpRequest

NODE = NodeName("node-a")
INVENTORY = Inventory((h100(0), in_mig_mode(1, (19, 4))))
MIG_DEVICE = next(name for name in INVENTORY.by_name if "mig" in name)
GENERATION = SpecGeneration("g", {name: f"v/c={name}" for name in INVENTORY.by_name})
DEVICES = {
    "GpuConfig": "gpu-0",
    "VfioDeviceConfig": "gpu-0",
    "MigDeviceConfig": MIG_DEVICE,
    "ComputeDomainChannelConfig": "channel-0",
    "ComputeDomainDaemonConfig": "daemon-0",
}
CORPUS = config_corpus.make()


def device_for(config: CorpusConfig) -> str:
    """The device that the config's kind is for; any of the driver if it has none of its kinds."""
    document: Any = json.loads(config.parameters)
    kind = document.get("kind") if isinstance(document, dict) else None
    device = DEVICES.get(kind, "") if isinstance(kind, str) else ""
    is_domains = config.driver == names.COMPUTE_DOMAIN_DRIVER
    if is_domains != device.startswith(("channel", "daemon")) or not device:
        return "channel-0" if is_domains else "gpu-0"
    return device


def gpu_config_kind(result: DeviceRequestAllocationResult) -> type[DeviceConfig]:
    is_mig = device_names.parse_mig_name(result.device) is not None
    return MigDeviceConfig if is_mig else GpuConfig


def prepare_problem(config: CorpusConfig, gates: FeatureGates) -> str:
    """Why prepare refuses a claim with this config; empty if it does not."""
    around, parameters = reviews.entry(config.parameters, config.driver, ["gpu"])
    entry = around.replace(json.dumps(reviews.PLACE), parameters)
    result = json.dumps(
        {"request": "gpu", "driver": config.driver, "pool": NODE, "device": device_for(config)}
    )
    text = (
        '{"metadata":{"name":"train","namespace":"team","uid":"u"},"status":{"allocation":{"devices":'
        f'{{"results":[{result}],"config":[{{"source":"FromClaim",{entry[1:]}]}}}}}}}}'
    )
    # As `Client.get_claim` reads it.
    claim = ResourceClaim.model_validate(decoding.parse(text))
    try:
        if config.driver == names.GPU_DRIVER:
            configured = opaque_configs.resolve(claim, config.driver, gpu_config_kind, gates)
            gpu_plan.make(claim, configured, INVENTORY, GENERATION, NODE)
        else:
            configured = opaque_configs.resolve(
                claim, config.driver, domain_plan.config_type, gates
            )
            domain_plan.make(claim, configured, NODE, is_host_managed=False)
    except PermanentError as error:
        return str(error)
    return ""


def admission(config: CorpusConfig, gates: FeatureGates, resource: str, version: str) -> Any:
    endpoints = Endpoints(gates, ClusterNames, {}, WebhookMetrics(), time.perf_counter)
    claim = reviews.claim_text(
        [reviews.entry(config.parameters, config.driver, ["gpu"])],
        resource=resource,
        version=version,
    )
    body = reviews.review(claim, resource=resource, version=version)
    answer = endpoints.respond(HttpRequest("POST", VALIDATE_PATH, "", "application/json", body))
    assert answer.status == 200
    return json.loads(answer.body)["response"]


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("", 100),
        ("TimeSlicingSettings=true", 110),
        ("MPSSupport=true,TimeSlicingSettings=true", 250),
    ],
)
def test_admission_and_prepare_say_the_same(text: str, allowed: int) -> None:
    gates = FeatureGates.parse(text).without(UNAVAILABLE_FEATURES)
    counts: Counter[str] = Counter()
    for index, config in enumerate(CORPUS):
        resource = (reviews.CLAIMS, reviews.TEMPLATES)[index % 2]
        version = ("v1", "v1beta2", "v1beta1")[index % 3]
        said = admission(config, gates, resource, version)
        problem = prepare_problem(config, gates)
        told = f"{config}: admission {said}, prepare {problem or 'accepts it'}"
        if said["allowed"] and "is not the UID of a ComputeDomain" in problem:
            # Manifests with such values have their own documented failure, so this is a warning.
            assert "pods with this claim will not start" in said["warnings"][0], told
            counts["warned"] += 1
            continue
        assert said["allowed"] == (not problem), told
        counts["allowed" if said["allowed"] else "denied"] += 1
        if not said["allowed"]:
            causes = said["status"]["details"]["causes"]
            assert causes, told
            assert all(".opaque.parameters" in cause["field"] for cause in causes), told
    assert sum(counts.values()) == config_corpus.SIZE
    # Both verdicts are frequent, so that agreement says something.
    assert counts["allowed"] > allowed, counts
    assert counts["denied"] > 300, counts
    assert counts["warned"] > 3, counts
