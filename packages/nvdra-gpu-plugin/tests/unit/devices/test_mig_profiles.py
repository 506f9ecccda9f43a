# SPDX-License-Identifier: Apache-2.0
"""Names of MIG profiles, by the share of the GPU's memory that they have."""

import pytest
from nvdra_gpu_plugin.devices import mig_profiles
from nvdra_sim.configuration import hardware_catalog

MIB = 1 << 20
A100, H100, H200 = 42949672960, 85520809984, 143771 * MIB


@pytest.mark.parametrize(
    ("total", "index", "slices", "memory_mib", "name"),
    [
        (A100, 0, 1, 4864, "1g.5gb"),
        (A100, 7, 1, 4864, "1g.5gb+me"),
        (A100, 1, 2, 9856, "2g.10gb"),
        (A100, 2, 3, 19968, "3g.20gb"),
        (A100, 4, 7, 40192, "7g.40gb"),
        (H100, 0, 1, 9984, "1g.10gb"),
        (H100, 9, 1, 20096, "1g.20gb"),
        (H100, 2, 3, 40448, "3g.40gb"),
        (H100, 4, 7, 81152, "7g.80gb"),
        (H200, 0, 1, 16384, "1g.18gb"),
    ],
)
def test_a_profile_is_named_by_eighths_of_the_gpus_memory(
    total: int, index: int, slices: int, memory_mib: int, name: str
) -> None:
    assert mig_profiles.profile_name(index, slices, memory_mib * MIB, total) == name


@pytest.mark.parametrize(
    "model", [key for key, each in hardware_catalog.gpu_models().items() if each.mig_table]
)
def test_every_known_profile_has_the_name_that_nvidia_gives_it(model: str) -> None:
    described = hardware_catalog.gpu_models()[model]
    for profile in hardware_catalog.mig_tables()[str(described.mig_table)].profiles:
        found = mig_profiles.profile_name(
            profile.enum, profile.slices, profile.memory_mib * MIB, described.memory_mib * MIB
        )
        assert found == profile.name


@pytest.mark.parametrize(("index", "total"), [(18, H100), (0, None)])
def test_nvml_is_asked_for_the_name_where_the_table_or_the_memory_is_missing(
    index: int, total: int | None
) -> None:
    found = mig_profiles.profile_name(index, 1, 9984 * MIB, total, "1g.10gb+new")
    assert found == "1g.10gb+new"


def test_the_profile_that_made_the_reference_driver_stop_is_one_for_graphics() -> None:
    assert mig_profiles.profile_name(17, 3, 40448 * MIB, H100) == "3g.40gb+gfx"


def test_a_part_of_a_gpu_instance_says_its_compute_slices() -> None:
    assert mig_profiles.part_name("3g.20gb", 1) == "1c.3g.20gb"
