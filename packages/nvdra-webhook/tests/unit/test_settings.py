# SPDX-License-Identifier: Apache-2.0
"""Settings that cannot work are rejected at the start, and those of the reference driver work."""

import subprocess
import sys

import pytest
from nvdra_runtime.settings import loader
from nvdra_runtime.settings.loader import SettingsError
from nvdra_webhook.settings import Settings

FILES = {"TLS_CERT_FILE": "/cert/tls.crt", "TLS_PRIVATE_KEY_FILE": "/cert/tls.key"}
MANAGED = {
    "TLS_SECRET_NAME": "keys",
    "NAMESPACE": "nvdra",
    "SERVICE_NAME": "webhook",
    "WEBHOOK_CONFIGURATION_NAME": "config",
}


def problems(*argv: str, **variables: str) -> str:
    with pytest.raises(SettingsError) as caught:
        loader.load_or_raise(Settings, argv, variables)
    return str(caught.value)


def test_the_reference_drivers_command_line_works() -> None:
    settings = loader.load_or_raise(
        Settings,
        ["--tls-cert-file=/cert/tls.crt", "--tls-private-key-file=/cert/tls.key", "--port=8443"],
        {"FEATURE_GATES": "MPSSupport=true,"},
    )
    assert (settings.port, settings.max_request_bytes) == (8443, 8 << 20)
    assert loader.load_or_raise(Settings, [], FILES).port == 443


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, 'Required flags "tls-cert-file, tls-private-key-file" not set'),
        ({"TLS_CERT_FILE": "/x"}, 'Required flag "tls-private-key-file" not set'),
        ({"TLS_SECRET_NAME": "x"}, '"service-name, webhook-configuration-name" not set'),
        ({**MANAGED, **FILES}, "--tls-secret-name cannot be used with --tls-cert-file and"),
        ({**FILES, "PORT": "70000"}, "PORT (flag --port)"),
        ({**FILES, "TLS_MIN_VERSION": "TLS13"}, "TLS_MIN_VERSION"),
        (
            {**FILES, "FEATURE_GATES": "IMEXDaemonsWithDNSNames=false"},
            "feature gate ComputeDomainCliques requires IMEXDaemonsWithDNSNames",
        ),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, str], text: str) -> None:
    assert text in problems(**given)


def test_certificates_are_for_the_service_and_more() -> None:
    settings = loader.load_or_raise(Settings, ["--tls-dns-names=a.example, b.example"], MANAGED)
    service = "webhook.nvdra.svc"
    expected = {service, f"{service}.cluster.local", "a.example", "b.example"}
    assert settings.dns_names == expected


def test_the_api_server_is_asked_only_if_something_is_asked_of_it() -> None:
    for given, needed in (
        (FILES, True),
        ({**FILES, "CLUSTER_LOOKUP_INTERVAL": "0s"}, False),
        ({**MANAGED, "CLUSTER_LOOKUP_INTERVAL": "0s"}, True),
    ):
        assert loader.load_or_raise(Settings, [], given).needs_api_server == needed


def test_the_help_describes_every_flag() -> None:
    command = [sys.executable, "-m", "nvdra_webhook", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for field in Settings.model_fields:
        assert f"-{field.replace('_', '-')}" in shown
    assert "Admission webhook of ResourceClaims" in shown
