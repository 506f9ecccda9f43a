# SPDX-License-Identifier: Apache-2.0
"""Settings of MPS: their problems, and memory limits as the MPS control daemon is given them."""

import pytest
from nvdra_api.quantity import Quantity
from nvdra_api.v1beta1.sharing import (
    InvalidDeviceSelectorError,
    InvalidLimitError,
    MpsConfig,
    mps_limit_megabytes,
    mps_limits,
)


def texts(config: MpsConfig) -> list[str]:
    return [problem.text for problem in config.problems("sharing.mpsConfig")]


@pytest.mark.parametrize("percentage", [0, 50, 100])
def test_a_thread_percentage_from_0_to_100_is_valid(percentage: int) -> None:
    assert texts(MpsConfig(default_active_thread_percentage=percentage)) == []


@pytest.mark.parametrize(
    ("percentage", "text"),
    [
        (-1, "active thread percentage must not be negative"),
        (101, "active thread percentage must not be greater than 100"),
    ],
)
def test_any_other_thread_percentage_is_a_problem(percentage: int, text: str) -> None:
    assert texts(MpsConfig(default_active_thread_percentage=percentage)) == [text]


def test_every_invalid_limit_and_device_key_is_a_problem() -> None:
    config = MpsConfig(
        default_active_thread_percentage=-1,
        default_pinned_device_memory_limit=Quantity.parse("1M"),
        default_per_device_pinned_memory_limit={
            "nope": Quantity.parse("1Gi"),
            "01": Quantity.parse("-5Gi"),
            "0": Quantity.parse("1Gi"),
            "GPU-4d1f": Quantity.parse("1Mi"),
        },
    )
    assert [problem.field for problem in config.problems("sharing.mpsConfig")] == [
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
def test_a_limit_is_given_to_mps_in_megabytes(quantity: str, megabytes: int) -> None:
    assert mps_limit_megabytes(Quantity.parse(quantity)) == megabytes


def limits(uuids: list[str], default: str | None, per_device: dict[str, str]) -> dict[str, int]:
    found = None if default is None else Quantity.parse(default)
    return mps_limits(
        uuids, found, {key: Quantity.parse(value) for key, value in per_device.items()}
    )


ONE = ["UUID0"]


@pytest.mark.parametrize(
    ("uuids", "default", "per_device", "expected"),
    [
        ([], None, {}, {}),
        ([], "2Gi", {}, {}),
        (ONE, "2Gi", {}, {"UUID0": 2048}),
        (ONE, "2Gi", {"0": "1Gi"}, {"UUID0": 1024}),
        (ONE, "2Gi", {"UUID0": "1Gi"}, {"UUID0": 1024}),
        (ONE, "10Mi", {}, {"UUID0": 10}),
        (ONE, "1Gi", {}, {"UUID0": 1024}),
        (ONE, "10M", {}, {"UUID0": 9}),
        (ONE, "1G", {}, {"UUID0": 953}),
        (["UUID0", "UUID1"], None, {"1": "1Gi"}, {"UUID1": 1024}),
        (["UUID0", "UUID1"], "1Gi", {"UUID1": "2Gi"}, {"UUID0": 1024, "UUID1": 2048}),
    ],
)
def test_each_device_has_its_own_limit_or_the_default(
    uuids: list[str], default: str | None, per_device: dict[str, str], expected: dict[str, int]
) -> None:
    assert limits(uuids, default, per_device) == expected


@pytest.mark.parametrize(
    ("uuids", "default", "per_device"),
    [
        ([], None, {"0": "1Gi"}),
        ([], "2Gi", {"0": "1Gi"}),
        (ONE, "2Gi", {"UUID1": "1Gi"}),
        (ONE, "2Gi", {"1": "1Gi"}),
        (ONE, None, {"0": "1Gi", "UUID0": "1Gi"}),
        *(
            (ONE, None, {key: "1Gi"})
            for key in ("00", "+0", "-0", "-1", " 0", "0x0", "0_0", "uuid0")
        ),
    ],
)
def test_a_limit_for_a_device_that_the_claim_does_not_have_is_an_error(
    uuids: list[str], default: str | None, per_device: dict[str, str]
) -> None:
    with pytest.raises(InvalidDeviceSelectorError, match=r"^invalid device: "):
        limits(uuids, default, per_device)


@pytest.mark.parametrize(("default", "per_device"), [("1M", {}), (None, {"UUID0": "1M"})])
def test_a_limit_below_one_mebibyte_is_an_error(
    default: str | None, per_device: dict[str, str]
) -> None:
    with pytest.raises(InvalidLimitError, match=r"^invalid limit: .*1M"):
        limits(ONE, default, per_device)
