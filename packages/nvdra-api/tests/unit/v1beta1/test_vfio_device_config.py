# SPDX-License-Identifier: Apache-2.0
"""VfioDeviceConfig: implied defaults, its feature gate and its policy."""

from nvdra_api.errors import Reason
from nvdra_api.gates import FeatureGates
from nvdra_api.v1beta1 import VfioDeviceConfig
from nvdra_api.v1beta1.vfio_device_config import IommuConfig

NO_GATES = FeatureGates()
PASSTHROUGH = FeatureGates.parse("PassthroughSupport=true")


def test_the_defaults_do_not_depend_on_the_gate() -> None:
    defaults = VfioDeviceConfig(
        iommu=IommuConfig(backend_policy="LegacyOnly", enable_api_device=False)
    )
    assert VfioDeviceConfig().normalized(NO_GATES) == defaults
    assert VfioDeviceConfig(iommu=IommuConfig()).normalized(PASSTHROUGH) == defaults


def test_a_disabled_gate_is_a_problem() -> None:
    (problem,) = VfioDeviceConfig().problems(NO_GATES)
    assert problem.text == 'VfioDeviceConfig requires the "PassthroughSupport" feature gate'
    assert problem.reason is Reason.FEATURE_GATE_DISABLED


def test_a_problem_with_the_policy_names_the_valid_ones() -> None:
    config = VfioDeviceConfig(iommu=IommuConfig(backend_policy="preferIommuFD"))
    (problem,) = config.normalized(PASSTHROUGH).problems(PASSTHROUGH)
    assert problem.text == (
        "unknown IOMMU backend policy: preferIommuFD, "
        "supported IOMMU backend policies: LegacyOnly, PreferIommuFD"
    )
