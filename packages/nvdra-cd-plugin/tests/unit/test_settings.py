# SPDX-License-Identifier: Apache-2.0
"""Flags and variables of the plugin."""

import pytest
from nvdra_cd_plugin.settings import Settings
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.settings.loader import SettingsError


def read(*argv: str, **environ: str) -> Settings:
    return process_settings.load_or_raise(Settings, argv, {"NODE_NAME": "node-a", **environ})


def test_the_references_names_and_defaults() -> None:
    settings = read()
    assert settings.namespace == "default"
    assert str(settings.imex_host_socket_path) == "/etc/nvidia-imex/imex_ctrl.sock"
    assert settings.plugin_dir.name == "compute-domain.nvidia.com"
    assert not settings.is_host_managed
    assert not settings.gpu_clique_label_enabled
    given = read(IMEX_HOST_SOCKET_PATH="/x", GPU_CLIQUE_LABEL_ENABLED="true", NAMESPACE="nvdra")
    assert (str(given.imex_host_socket_path), given.namespace) == ("/x", "nvdra")
    assert given.gpu_clique_label_enabled


def test_daemons_may_be_in_several_namespaces_each_named_once() -> None:
    settings = read("--namespace=nvdra", ADDITIONAL_NAMESPACES="old, nvdra,,older")
    assert settings.managed_namespaces == ("nvdra", "old", "older")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--imex-mode=hostManaged",), "HostManagedIMEXDaemon=true"),
        (("--imex-mode=nobody",), "imex-mode"),
        (("--imex-isolation=channel",), "not implemented"),
        (("--imex-isolation=node",), "must be domain"),
        (
            ("--feature-gates=ComputeDomainCliques=true,IMEXDaemonsWithDNSNames=false",),
            "IMEXDaemons",
        ),
        (("--cdi-root=cdi",), "must be absolute"),
        (("--dev-root=/x",), "named dev"),
        (("--healthcheck-port=51515",), "/healthz and /readyz of --http-endpoint"),
    ],
)
def test_an_invalid_combination_is_refused(argv: tuple[str, ...], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        read(*argv)


def test_another_file_of_devices_is_refused_with_the_flag_for_it() -> None:
    with pytest.raises(SettingsError, match="ALT_PROC_DEVICES_PATH: not supported: --proc-root"):
        read(ALT_PROC_DEVICES_PATH="/var/lib/nvml-mock/imex/proc-devices")


def test_the_environment_of_the_references_daemonset_serves() -> None:
    given = read(HEALTHCHECK_PORT="51515", LOG_VERBOSITY="4", MASK_NVIDIA_DRIVER_PARAMS="")
    assert given == read()


def test_the_host_runs_imex_where_the_gate_allows_it() -> None:
    gate = "--feature-gates=HostManagedIMEXDaemon=true"
    assert read("--imex-mode=hostManaged", "--imex-isolation=", gate).is_host_managed
