# SPDX-License-Identifier: Apache-2.0
"""The command line: both commands, the reference driver's flags and variables, and the help."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from nvdra_imex_daemon.settings import Settings
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.settings.loader import SettingsError

CLIQUE = "2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2"
POD = {
    "COMPUTE_DOMAIN_UUID": "11111111-2222-3333-4444-555555555555",
    "COMPUTE_DOMAIN_NAME": "ring",
    "COMPUTE_DOMAIN_NAMESPACE": "team-a",
    "CLIQUE_ID": CLIQUE,
    "NODE_NAME": "node-a",
    "POD_IP": "10.4.1.7",
    "POD_UID": "0a0a0a0a-0000-4000-8000-00000000000a",
    "POD_NAME": "daemon-x7k2p",
    "POD_NAMESPACE": "nvdra",
    "MAX_NODES_PER_IMEX_DOMAIN": "18",
    "FEATURE_GATES": "ComputeDomainCliques=true,IMEXDaemonsWithDNSNames=true,",
}


def command(*words: str, environ: Mapping[str, str] = {}) -> "subprocess.CompletedProcess[str]":
    program = Path(sys.executable).with_name("nvdra-imex-daemon")
    known = {"PATH": os.defpath, **environ}
    return subprocess.run(
        [program, *words], env=known, capture_output=True, text=True, check=False, timeout=30
    )


def test_the_environment_of_the_daemonset_is_sufficient() -> None:
    settings = process_settings.load_or_raise(Settings, ["-v", "4"], POD)
    assert list(settings.missing_settings()) == []
    assert (settings.cliqueid, settings.node, settings.v) == (CLIQUE, "node-a", 4)
    assert settings.uses_dns_names
    assert settings.uses_cliques
    assert str(settings.config_path) == "/imexd/imexd.cfg"
    assert settings.max_nodes_per_imex_domain == 18


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--cliqueid=../../x", "must be <cluster UUID>.<number>"),
        ("--compute-domain-uuid=a/b", "must be a UID"),
        ("--pod-ip=somewhere", "--pod-ip"),
        ("--max-nodes-per-imex-domain=-1", "greater than or equal to 0"),
        ("--http-endpoint=8080", "host:port"),
        ("--metrics-path=metrics", "must start with /"),
        ("--feature-gates=IMEXDaemonsWithDNSNames=false", "ComputeDomainCliques requires"),
        ("--feature-gates=Nonsense=true", "unrecognized feature gate"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(flag: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        process_settings.load_or_raise(Settings, [flag], POD)


def test_help_explains_both_commands_and_every_variable() -> None:
    told = command("run", "--help")
    assert told.returncode == 0
    for words in ("run\n", "check\n", "variable CLIQUE_ID", "variable POD_IP", "For exec probes"):
        assert words in told.stdout


def test_a_missing_or_unknown_command_is_an_error() -> None:
    told = command(environ=POD)
    assert told.returncode == 1
    assert "Error: a command is missing: run or check" in told.stderr
    told = command("walk", environ=POD)
    assert "Error: arguments not supported: [walk]" in told.stderr


def test_run_names_every_missing_setting() -> None:
    told = command("-v", "4", "run")
    assert told.returncode == 1
    assert "COMPUTE_DOMAIN_UUID) is required" in told.stderr
    assert "CDI" in told.stderr
    for name in ("POD_NAME", "POD_NAMESPACE", "NODE_NAME"):
        assert f"(variable {name}) is required; the DaemonSet sets it" in told.stderr
    assert "POD_IP" not in told.stderr, "a node without fabric needs no address"


def test_check_succeeds_on_a_node_without_fabric() -> None:
    told = command("-v", "4", "check", environ={**POD, "CLIQUE_ID": ""})
    assert (told.returncode, told.stdout) == (
        0,
        "check succeeded (noop, clique ID is empty)\n",
    )


def test_check_names_a_missing_nvidia_imex_ctl() -> None:
    told = command("check", environ={**POD, "PATH": "/nowhere"})
    assert told.returncode == 1
    assert "ImexBinaryMissing: nvidia-imex-ctl cannot be run" in told.stderr
