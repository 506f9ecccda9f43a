# SPDX-License-Identifier: Apache-2.0
"""What all config kinds have in common: manifests, normalization and the JSON schema."""

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.decoding import CONFIGS
from nvdra_api.gates import FeatureGates
from nvdra_api.quantity import Quantity
from nvdra_api.v1beta1 import (
    CONFIGS_BY_DRIVER,
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    DeviceConfig,
    GpuConfig,
    MigDeviceConfig,
    VfioDeviceConfig,
)
from nvdra_api.v1beta1.gpu_config import GpuSharing
from nvdra_api.v1beta1.mig_device_config import MigDeviceSharing
from nvdra_api.v1beta1.sharing import MpsConfig, TimeSlicingConfig
from nvdra_api.v1beta1.vfio_device_config import IommuConfig

NO_GATES = FeatureGates()
ALL = FeatureGates.parse("TimeSlicingSettings=true,MPSSupport=true,PassthroughSupport=true")
KINDS = [kind for kinds in CONFIGS_BY_DRIVER.values() for kind in kinds]

quantities = st.builds(
    Quantity.parse,
    st.from_regex(r"[1-9][0-9]{0,8}(\.[0-9]{1,3})?(Ki|Mi|Gi|k|M|G|m)?", fullmatch=True),
)
mps_configs = st.builds(
    MpsConfig,
    default_active_thread_percentage=st.none() | st.integers(-5, 105),
    default_pinned_device_memory_limit=st.none() | quantities,
    default_per_device_pinned_memory_limit=st.none()
    | st.dictionaries(st.text(min_size=1), quantities, min_size=1),
    multi_user=st.none() | st.booleans(),
)
strategies = st.sampled_from(["", "TimeSlicing", "MPS", "Foo"])
configs: st.SearchStrategy[DeviceConfig] = st.one_of(
    st.builds(
        GpuConfig,
        sharing=st.none()
        | st.builds(
            GpuSharing,
            strategy=strategies,
            time_slicing_config=st.none()
            | st.builds(TimeSlicingConfig, interval=st.none() | st.text()),
            mps_config=st.none() | mps_configs,
        ),
    ),
    st.builds(
        MigDeviceConfig,
        sharing=st.none()
        | st.builds(MigDeviceSharing, strategy=strategies, mps_config=st.none() | mps_configs),
    ),
    st.builds(
        VfioDeviceConfig,
        iommu=st.none()
        | st.builds(
            IommuConfig, backend_policy=st.text(), enable_api_device=st.none() | st.booleans()
        ),
    ),
    st.builds(ComputeDomainChannelConfig, domain_id=st.text(), allocation_mode=st.text()),
    st.builds(ComputeDomainDaemonConfig, domain_id=st.text()),
)


@given(configs)
def test_a_manifest_decodes_to_the_same_config(config: DeviceConfig) -> None:
    assert CONFIGS.decode_value(config.to_manifest(), strict=True) == config


@given(configs, st.sampled_from([NO_GATES, ALL]))
def test_a_normalized_config_is_not_changed_by_normalization(
    config: DeviceConfig, gates: FeatureGates
) -> None:
    once = config.normalized(gates)
    assert once.normalized(gates) == once


@pytest.mark.parametrize(
    "config",
    [
        GpuConfig(),
        GpuConfig(
            sharing=GpuSharing(
                strategy="MPS",
                mps_config=MpsConfig(default_pinned_device_memory_limit=Quantity.parse("1Gi")),
            )
        ),
        GpuConfig(sharing=GpuSharing(strategy="TimeSlicing")),
        MigDeviceConfig(sharing=MigDeviceSharing(strategy="MPS")),
        VfioDeviceConfig(iommu=IommuConfig(backend_policy="PreferIommuFD")),
        ComputeDomainChannelConfig(domain_id="x"),
        ComputeDomainDaemonConfig(domain_id="x"),
    ],
)
def test_the_schema_of_a_kind_accepts_valid_manifests(config: DeviceConfig) -> None:
    assert config.problems(ALL) == ()
    jsonschema.validate(config.to_manifest(), type(config).model_json_schema())


@pytest.mark.parametrize(
    "config",
    [
        GpuConfig(sharing=GpuSharing(strategy="Foo")),
        GpuConfig(
            sharing=GpuSharing(
                strategy="TimeSlicing", time_slicing_config=TimeSlicingConfig(interval="Forever")
            )
        ),
        MigDeviceConfig(
            sharing=MigDeviceSharing(
                strategy="MPS", mps_config=MpsConfig(default_active_thread_percentage=101)
            )
        ),
        VfioDeviceConfig(iommu=IommuConfig(backend_policy="legacy")),
        ComputeDomainChannelConfig(domain_id="x", allocation_mode="Some"),
        ComputeDomainDaemonConfig(),
    ],
)
def test_the_schema_of_a_kind_refuses_values_that_are_problems(config: DeviceConfig) -> None:
    assert config.problems(ALL) != ()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config.to_manifest(), type(config).model_json_schema())


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_of_a_kind_refuses_unknown_fields_and_other_kinds(
    kind: type[DeviceConfig],
) -> None:
    schema = kind.model_json_schema()
    manifest = {**kind().to_manifest(), "domainID": "x"}
    if not kind.kind.startswith("ComputeDomain"):
        del manifest["domainID"]
    jsonschema.validate(manifest, schema)
    for wrong in ({"kind": "Other"}, {"apiVersion": "v1"}, {"unknownField": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**manifest, **wrong}, schema)
