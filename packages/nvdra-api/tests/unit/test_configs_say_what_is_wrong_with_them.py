"""Opaque configs: implied defaults, and every problem in the words of the specification."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.protocol import decoding
from nvdra_api.types import configs
from nvdra_api.types.configs import (
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    GpuConfig,
    GpuSharing,
    IommuConfig,
    MigDeviceConfig,
    MigDeviceSharing,
    MpsConfig,
    TimeSlicingConfig,
    VfioDeviceConfig,
)
from nvdra_api.types.errors import Reason
from nvdra_api.types.gates import Gates
from nvdra_api.types.quantity import Quantity

NO_GATES = Gates()
ALL = Gates.parse("TimeSlicingSettings=true,MPSSupport=true,PassthroughSupport=true")


def sharing(strategy, *, slicing=None, mps=None):
    return GpuConfig(
        sharing=GpuSharing(strategy=strategy, time_slicing_config=slicing, mps_config=mps)
    )


def texts(config, gates=ALL):
    return [problem.text for problem in config.normalized(gates).problems(gates)]


@pytest.mark.parametrize("config", [GpuConfig(), MigDeviceConfig()])
def test_a_config_without_sharing_is_valid_whatever_the_gates_are(config):
    assert config.normalized(NO_GATES) == config
    assert config.problems(NO_GATES) == ()


@pytest.mark.parametrize("slicing", [None, TimeSlicingConfig(), TimeSlicingConfig(interval=None)])
def test_time_slicing_without_an_interval_means_the_default_one(slicing):
    normalized = sharing("TimeSlicing", slicing=slicing).normalized(ALL)
    assert normalized == sharing("TimeSlicing", slicing=TimeSlicingConfig(interval="Default"))
    assert normalized.problems(ALL) == ()


@pytest.mark.parametrize("interval", ["Default", "Short", "Medium", "Long"])
def test_the_four_intervals_are_valid(interval):
    assert texts(sharing("TimeSlicing", slicing=TimeSlicingConfig(interval=interval))) == []


@pytest.mark.parametrize("interval", ["Invalid Interval", "", "default"])
def test_any_other_interval_is_told_with_those_that_are_right(interval):
    assert texts(sharing("TimeSlicing", slicing=TimeSlicingConfig(interval=interval))) == [
        f"unknown time-slice interval: {interval}, "
        "supported time-slice intervals: Default, Short, Medium, Long"
    ]


@pytest.mark.parametrize(
    "config", [sharing("MPS"), MigDeviceConfig(sharing=MigDeviceSharing(strategy="MPS"))]
)
def test_mps_without_settings_gets_empty_ones(config):
    normalized = config.normalized(ALL)
    assert normalized.sharing.mps_config == MpsConfig()
    assert normalized.problems(ALL) == ()


@pytest.mark.parametrize(
    ("strategy", "gate"), [("TimeSlicing", "TimeSlicingSettings"), ("MPS", "MPSSupport")]
)
@pytest.mark.parametrize(
    "make", [sharing, lambda name: MigDeviceConfig(sharing=MigDeviceSharing(strategy=name))]
)
def test_a_strategy_whose_gate_is_off_names_both_and_fills_nothing_in(make, strategy, gate):
    config = make(strategy)
    assert config.normalized(NO_GATES) == config
    (problem,) = config.problems(NO_GATES)
    assert problem.reason is Reason.FEATURE_GATE_DISABLED
    assert problem.field == "sharing.strategy"
    assert problem.text == (
        f'"{strategy}" is selected as the GPU sharing strategy, but the "{gate}" '
        "feature gate is not enabled"
    )


@pytest.mark.parametrize("strategy", ["", "mps", "Foo"])
def test_an_unknown_strategy_is_told_with_those_that_are_right(strategy):
    assert texts(sharing(strategy)) == [
        f"unknown GPU sharing strategy: {strategy}, "
        "supported GPU sharing strategies: TimeSlicing, MPS"
    ]


@pytest.mark.parametrize("percentage", [0, 50, 100])
def test_a_thread_percentage_may_be_anything_from_0_to_100(percentage):
    mps = MpsConfig(default_active_thread_percentage=percentage)
    assert texts(sharing("MPS", mps=mps)) == []


@pytest.mark.parametrize(
    ("percentage", "text"),
    [
        (-1, "active thread percentage must not be negative"),
        (101, "active thread percentage must not be greater than 100"),
    ],
)
def test_a_thread_percentage_outside_is_refused(percentage, text):
    mps = MpsConfig(default_active_thread_percentage=percentage)
    assert texts(sharing("MPS", mps=mps)) == [text]


def test_settings_of_the_other_strategy_are_refused():
    assert texts(sharing("TimeSlicing", mps=MpsConfig())) == [
        "cannot use MpsConfig with the 'TimeSlicing' strategy"
    ]
    assert texts(sharing("MPS", slicing=TimeSlicingConfig(interval="Long"))) == [
        "cannot use TimeSlicingConfig with the 'MPS' strategy"
    ]


def test_limits_and_keys_that_no_device_could_have_are_all_told():
    mps = MpsConfig(
        default_active_thread_percentage=-1,
        default_pinned_device_memory_limit=Quantity.parse("1M"),
        default_per_device_pinned_memory_limit={
            "nope": Quantity.parse("1Gi"),
            "01": Quantity.parse("-5Gi"),
            "0": Quantity.parse("1Gi"),
            "GPU-4d1f": Quantity.parse("1Mi"),
        },
    )
    assert [problem.field for problem in sharing("MPS", mps=mps).problems(ALL)] == [
        "sharing.mpsConfig.defaultActiveThreadPercentage",
        "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit",
        "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.nope",
        "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.01",
        "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.01",
    ]


@pytest.mark.parametrize(
    ("quantity", "megabytes"),
    [
        ("1Gi", 1024),
        ("10Mi", 10),
        ("1.9Mi", 1),
        ("1048576", 1),
        ("1500k", 1),
        ("10M", 9),
        ("1G", 953),
        ("1e9", 953),
        ("1M", 0),
        ("1048575", 0),
        ("0", 0),
        ("100m", 0),
        ("-5Gi", 0),
        ("1Ei", 1099511627776),
        ("99999999999999999999", 8796093022207),
    ],
)
def test_a_limit_becomes_the_number_that_mps_is_given(quantity, megabytes):
    assert configs.megabytes(Quantity.parse(quantity)) == megabytes


def test_passthrough_defaults_do_not_depend_on_the_gate():
    wanted = VfioDeviceConfig(
        iommu=IommuConfig(backend_policy="LegacyOnly", enable_api_device=False)
    )
    assert VfioDeviceConfig().normalized(NO_GATES) == wanted
    assert VfioDeviceConfig(iommu=IommuConfig()).normalized(ALL) == wanted


def test_passthrough_needs_its_gate():
    (problem,) = VfioDeviceConfig().problems(NO_GATES)
    assert problem.text == 'VfioDeviceConfig requires the "PassthroughSupport" feature gate'
    assert problem.reason is Reason.FEATURE_GATE_DISABLED


def test_an_unknown_iommu_policy_is_told_with_those_that_are_right():
    config = VfioDeviceConfig(iommu=IommuConfig(backend_policy="preferIommuFD"))
    assert texts(config) == [
        "unknown IOMMU backend policy: preferIommuFD, "
        "supported IOMMU backend policies: LegacyOnly, PreferIommuFD"
    ]


@pytest.mark.parametrize("kind", [ComputeDomainChannelConfig, ComputeDomainDaemonConfig])
def test_a_domain_config_must_name_its_domain(kind):
    assert texts(kind()) == ["domainID cannot be empty"]
    assert texts(kind(domain_id="not-needed-for-test")) == []


def test_a_channel_config_means_one_channel_and_refuses_unknown_modes():
    assert ComputeDomainChannelConfig(domain_id="x").normalized(ALL).allocation_mode == "Single"
    assert texts(ComputeDomainChannelConfig(domain_id="x", allocation_mode="Some")) == [
        "unknown allocation mode: Some, supported allocation modes: Single, All"
    ]


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
documents = st.one_of(
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


@given(documents)
def test_what_is_written_reads_as_the_same_config(config):
    assert decoding.decode_value(config.document(), strict=True) == config


@given(documents, st.sampled_from([NO_GATES, ALL]))
def test_normalizing_twice_changes_nothing_more(config, gates):
    once = config.normalized(gates)
    assert once.normalized(gates) == once
