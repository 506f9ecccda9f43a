# SPDX-License-Identifier: Apache-2.0
"""Settings that cannot work are rejected at the start."""

import json

import pytest
from nvdra_cd_controller.network_policies import NetworkRules
from nvdra_cd_controller.settings import Settings
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.settings.loader import SettingsError

NEEDED = {"POD_NAME": "controller-0", "IMAGE_NAME": "daemon:1", "LOG_VERBOSITY_CD_DAEMON": "4"}


def read(*flags: str, **variables: str) -> Settings:
    return process_settings.load_or_raise(Settings, flags, {**NEEDED, **variables})


def test_defaults_are_the_reference_drivers_except_for_the_rate_limits() -> None:
    settings = read()

    assert settings.namespace == "default"
    assert settings.max_nodes_per_imex_domain == 18
    assert settings.leader_election_enabled is False
    assert settings.leader_election_lease_lock_name == "nvidia-compute-domain-controller"
    assert (settings.leader_election_lease_duration, settings.leader_election_renew_deadline) == (
        15.0,
        10.0,
    )
    assert (settings.kube_api_qps, settings.kube_api_burst) == (200, 400)


@pytest.mark.parametrize("missing", NEEDED)
def test_a_missing_setting_is_named_by_its_variable(missing: str) -> None:
    environ = {name: value for name, value in NEEDED.items() if name != missing}
    with pytest.raises(SettingsError, match=missing):
        process_settings.load_or_raise(Settings, [], environ)


def test_durations_are_written_as_go_writes_them() -> None:
    settings = read("--leader-election-lease-duration=1m30s", LEADER_ELECTION_RETRY_PERIOD="500ms")

    assert settings.leader_election_lease_duration == 90
    assert settings.leader_election_retry_period == 0.5


def test_namespaces_and_secrets_are_separated_lists() -> None:
    settings = read(
        "--namespace=nvdra",
        ADDITIONAL_NAMESPACES="old, nvdra,older,",
        CD_DAEMON_IMAGE_PULL_SECRET_NAMES="one,two three",
    )

    assert settings.managed_namespaces == ("nvdra", "old", "older")
    assert settings.pull_secrets == ("one", "two", "three")


def test_resources_are_normalized_like_the_api_server_does() -> None:
    settings = read(
        CD_DAEMON_RESOURCES='{"requests": {"cpu": 0.1}, "limits": {"cpu": 2, "memory": "1024Mi"}}'
    )

    assert settings.cd_daemon_resources == {
        "requests": {"cpu": "100m"},
        "limits": {"cpu": "2", "memory": "1Gi"},
    }
    assert read(CD_DAEMON_RESOURCES="").cd_daemon_resources == {}


def test_network_rules_are_those_of_a_network_policy() -> None:
    text = '{"ingress": [{"ports": [{"port": 8080}], "from": [{"podSelector": {}}]}]}'
    rules = read(f"--cd-daemon-network-policy={text}").cd_daemon_network_policy
    assert rules == NetworkRules.model_validate(json.loads(text))
    assert read(CD_DAEMON_NETWORK_POLICY="{}").cd_daemon_network_policy == NetworkRules()
    assert read(CD_DAEMON_NETWORK_POLICY="").cd_daemon_network_policy is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--leader-election-lease-duration=15"], "15s"),
        (["--leader-election-lease-duration=10s"], "must be longer than"),
        (["--leader-election-retry-period=9s"], "1.2 times"),
        (["--imex-mode=hostManaged"], "HostManagedIMEXDaemon"),
        (["--imex-mode=nobody"], "driverManaged"),
        (["--imex-isolation=channel"], "not implemented"),
        (["--imex-isolation=pod"], "must be domain"),
        (["--max-nodes-per-imex-domain=0"], "greater than 0"),
        (["--http-endpoint=8080"], "host:port"),
        (["--feature-gates=IMEXDaemonsWithDNSNames=false"], "ComputeDomainCliques requires"),
        (["--image-name="], "image-name"),
        (["--pprof-path=/debug/pprof"], "--debug-endpoint has traces and status"),
        (["--log-flush-frequency", "5s"], "written at once"),
        (["--cd-daemon-image-pull-policy=Sometimes"], "IfNotPresent"),
        (["--cd-daemon-resources=200Mi"], "must be JSON like"),
        (["--cd-daemon-resources=[]"], "must be JSON like"),
        (['--cd-daemon-resources={"limits": {"memory": "200Mo"}}'], "quantities must match"),
        (['--cd-daemon-resources={"claims": {}}'], "not claims"),
        (["--cd-daemon-network-policy=all"], "must be JSON like"),
        (['--cd-daemon-network-policy={"inbound": []}'], "xtra inputs are not permitted"),
        (['--cd-daemon-network-policy={"ingress": [{"form": []}]}'], "not permitted"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(flags: list[str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        read(*flags)


@pytest.mark.parametrize("isolation", ["", "domain"])
def test_isolation_is_by_domain(isolation: str) -> None:
    flags = ["--imex-mode=hostManaged", "--feature-gates=HostManagedIMEXDaemon=true"]
    settings = read(*flags, f"--imex-isolation={isolation}")

    assert settings.is_host_managed
    assert settings.imex_isolation == "domain"
