# SPDX-License-Identifier: Apache-2.0
"""Fields that several settings models use: flag, check and help come with the type."""

from pathlib import Path

import pytest
from nvdra_runtime.kubeletplugin import settings
from nvdra_runtime.kubeletplugin.settings import PluginSettings
from nvdra_runtime.settings import fields, flags, loader
from nvdra_runtime.settings.loader import SettingsError
from pydantic import Field


class Settings(PluginSettings):
    """A component of a node."""

    driver = "gpu.example.com"
    kube_api_qps: fields.KubeApiQps = 50.0
    http_endpoint: fields.HttpEndpoint = ":8080"
    v: fields.Verbosity = Field(default=0, description="How much.")


def read(*argv: str, **environ: str) -> Settings:
    return loader.load_or_raise(Settings, argv, {"NODE_NAME": "a", **environ})


def test_a_component_gives_the_default_and_may_describe_a_flag_in_its_own_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert read().kube_api_qps == 50
    with pytest.raises(SystemExit):
        loader.load(Settings, program="p", version="1", argv=["--help"], environ={})
    page = capsys.readouterr().out
    assert "How much.\n      default 0; variable V" in page
    assert "API server:\n  --kubeconfig TEXT\n      Path of a kubeconfig" in page
    assert page.index("Node:") < page.index("API server:") < page.index("Observation:")


def test_an_empty_variable_switches_ports_and_pages_off() -> None:
    """The chart's way to say that no metrics are wanted."""
    off = read(HTTP_ENDPOINT="", METRICS_PATH="", DEBUG_ENDPOINT="")
    assert (off.http_endpoint, off.metrics_path, off.debug_endpoint) == ("", "", "")


def test_older_names_of_a_flag_and_its_variable_come_along() -> None:
    assert read(HOST_DRIVER_ROOT="/run/driver").nvidia_driver_root == Path("/run/driver")
    assert read("--host_driver-root=/run/driver").nvidia_driver_root == Path("/run/driver")


def test_every_wrong_value_is_told_by_the_name_it_was_given_by() -> None:
    wrong = {
        "NODE_NAME": "",
        "NVIDIA_DRIVER_ROOT": "here",
        "DEV_ROOT": "/devices",
        "KUBE_API_QPS": "0",
        "HTTP_ENDPOINT": "all",
        "METRICS_PATH": "metrics",
        "V": "-1",
    }
    with pytest.raises(SettingsError) as caught:
        read("--debug-endpoint=:99999", **wrong)
    problems = caught.value.problems
    assert len(problems) == len(wrong) + 1
    for name, problem in zip([*wrong][:-1], problems, strict=False):
        assert problem.startswith(f"variable {name} (flag --{name.lower().replace('_', '-')}): ")
    assert any("must be a directory named dev" in problem for problem in problems)


def test_what_is_left_out_of_a_component_is_no_flag_of_it() -> None:
    ours = {entry.flag for entry in flags.flag_table(Settings)}
    assert ours & settings.LEFT_OUT.keys() == set()
    assert fields.UNSUPPORTED_FLAGS.items() <= settings.LEFT_OUT.items()
