# SPDX-License-Identifier: Apache-2.0
"""The variables of `nvdra-cdi generate`, which are those of `nvidia-ctk cdi generate`."""

import pytest
from nvdra_cdi.cli import arguments, environment
from nvdra_cdi.cli.output import UsageError

EVERY = {
    "NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS": ("config_search_path", "/a:/b", ["/a", "/b"]),
    "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": ("output", "/x.yaml", "/x.yaml"),
    "NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT": ("format", "JSON", "json"),
    "NVIDIA_CTK_CDI_GENERATE_MODE": ("mode", "Management", "management"),
    "NVIDIA_CTK_DEV_ROOT": ("dev_root", "/dev-root", "/dev-root"),
    "NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES": (
        "device_name_strategy",
        "index, type-index",
        ["index", "type-index"],
    ),
    "NVIDIA_CTK_DRIVER_ROOT": ("driver_root", "/run/nvidia/driver", "/run/nvidia/driver"),
    "NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS": (
        "library_search_path",
        "/a,/b:/c",
        ["/a", "/b", "/c"],
    ),
    "NVIDIA_CTK_CDI_HOOK_PATH": ("nvidia_cdi_hook_path", "/hook", "/hook"),
    "NVIDIA_CTK_CDI_GENERATE_LDCONFIG_PATH": ("ldconfig_path", "/ldconfig", "/ldconfig"),
    "NVIDIA_CTK_CDI_GENERATE_VENDOR": ("vendor", "example.com", "example.com"),
    "NVIDIA_CTK_CDI_GENERATE_CLASS": ("class_", "board", "board"),
    "NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS": ("disable_hook", "chmod,all", ["chmod", "all"]),
    "NVIDIA_CTK_CDI_GENERATE_ENABLED_HOOKS": ("enable_hook", "chmod", ["chmod"]),
    "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS": ("feature_flag", "a,b", ["a", "b"]),
    "NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE": ("no_all_device", "1", True),
    "NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS": ("device_id", "0,1:0", ["0", "1:0"]),
}


@pytest.mark.parametrize(("variable", "case"), EVERY.items(), ids=EVERY.keys())
def test_a_variable_stands_for_a_flag_that_is_not_given(
    variable: str, case: tuple[str, str, object]
) -> None:
    attribute, text, value = case
    given = arguments.parser().parse_args(["generate"])
    environment.fill(given, {variable: text})
    assert getattr(given, attribute) == value


def test_a_flag_wins_over_its_variable_and_an_empty_variable_is_none() -> None:
    argv = ["generate", "--mode=imex", "--device-id=1,2", "--device-id=3"]
    given = arguments.parser().parse_args(argv)
    environment.fill(
        given,
        {
            "NVIDIA_CTK_CDI_GENERATE_MODE": "nvml",
            "NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS": "7",
            "NVIDIA_CTK_CDI_GENERATE_VENDOR": "",
        },
    )
    assert (given.mode, given.device_id, given.vendor) == ("imex", ["1", "2", "3"], None)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("NVIDIA_CTK_CDI_GENERATE_MODE", "tegra", "must be auto, nvml, "),
        ("NVIDIA_CTK_CDI_GENERATE_MODE", "CSV", "csv describes Tegra systems, .*: use nvidia-ctk"),
        ("NVIDIA_CTK_CDI_GENERATE_MODE", "wsl", "wsl describes GPUs of Windows .*: use nvidia-ctk"),
        ("NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT", "xml", "must be yaml or json"),
        ("NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES", "index,x", "must be index, type-index"),
        ("NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE", "maybe", "must be true or false"),
    ],
)
def test_a_wrong_variable_is_named_with_what_would_be_right(
    variable: str, value: str, reason: str
) -> None:
    given = arguments.parser().parse_args(["generate"])
    with pytest.raises(UsageError, match=f"^{variable}={value}: {reason}"):
        environment.fill(given, {variable: value})


def test_every_variable_is_tried_above_and_has_a_flag() -> None:
    given = vars(arguments.parser().parse_args(["generate"]))
    names = {variable.name for variable in environment.VARIABLES}
    assert names == set(EVERY)
    assert {variable.attribute for variable in environment.VARIABLES} <= set(given)


@pytest.mark.parametrize("command", ["list", "validate", "dirs", "monitor"])
def test_the_spec_directories_have_a_variable_in_every_command_that_reads_specs(
    command: str,
) -> None:
    variables = {"NVIDIA_CTK_CDI_SPEC_DIRS": "/a, /b", "NVIDIA_CTK_CDI_GENERATE_MODE": "tegra"}
    for argv, expected in (([], ["/a", "/b"]), (["--spec-dir=/c,/d"], ["/c", "/d"])):
        given = arguments.parser().parse_args([command, *argv])
        environment.fill(given, variables)
        assert given.spec_dir == expected
    given = arguments.parser().parse_args([command])
    environment.fill(given, {"NVIDIA_CTK_CDI_SPEC_DIRS": ""})
    assert given.spec_dir == []
