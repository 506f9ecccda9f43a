# SPDX-License-Identifier: Apache-2.0
"""Every name that anybody asks the library for is there, and no other."""

import re
import subprocess
from pathlib import Path

import pynvml
from nvdra_sim.native import nvml_functions, nvml_library

LISTED = {function.name for function in nvml_functions.functions()}


def test_the_library_exports_the_listed_names_and_its_marker() -> None:
    assert set(nvml_library.exported_names(nvml_library.build())) == LISTED | {"nvdra_sim_abi"}


def test_every_name_that_pynvml_looks_up_is_listed() -> None:
    source = Path(str(pynvml.__file__)).read_text(encoding="utf-8")
    wanted = set(re.findall(r"_nvmlGetFunctionPointer\([\"'](\w+)[\"']", source))
    assert len(wanted) > 400
    assert wanted - LISTED == set()


def test_the_list_is_sorted_and_names_446_functions_once() -> None:
    listed = [function.name for function in nvml_functions.functions()]
    assert listed == sorted(LISTED)
    assert len(listed) == 446


def test_every_tier_is_one_of_three() -> None:
    assert {function.tier for function in nvml_functions.functions()} == {"A", "B", "C"}


def test_a_legacy_name_is_a_symbol_of_its_own() -> None:
    legacy = {"nvmlInit", "nvmlInit_v1", "nvmlDeviceGetPciInfo_v2", "nvmlInternalGetExportTable"}
    assert legacy <= set(nvml_library.exported_names(nvml_library.build()))


def test_the_library_goes_by_the_name_that_everybody_opens() -> None:
    dynamic = subprocess.run(
        ["readelf", "--dynamic", nvml_library.build()], capture_output=True, text=True, check=True
    ).stdout
    assert "Library soname: [libnvidia-ml.so.1]" in dynamic


def test_the_library_is_small() -> None:
    assert nvml_library.build().stat().st_size < 300 * 1024
