# SPDX-License-Identifier: Apache-2.0
"""Settings that could never work are told at once, not after the kubelet has registered us."""

import pytest
from nvdra_gpu_plugin.settings import Settings
from nvdra_gpu_plugin.share_policy import SharePolicy
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.settings.loader import SettingsError


def read(*flags: str) -> Settings:
    return process_settings.load_or_raise(Settings, ["--node-name=n", *flags], {})


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--http-endpoint=8080", "host:port"),
        ("--debug-endpoint=localhost", "host:port"),
        ("--http-endpoint=:65536", "65535"),
        ("--metrics-path=metrics", "must start with /"),
        ("--kubelet-plugins-directory-path=plugins", "must be absolute"),
        ("--kubelet-registrar-directory-path=plugins_registry", "must be absolute"),
        ("--cdi-root=cdi", "must be absolute"),
        (f"--kubelet-plugins-directory-path=/{'x' * 100}", "bytes"),
        ("--healthcheck-port=51516", "/healthz and /readyz of --http-endpoint"),
        ("--feature-gates=MPSSupport=true", "--image-name .* is required"),
        ("--image-pull-policy=Sometimes", "IfNotPresent"),
        ("--consumable-shares=2", "requires feature gate ConsumableShares"),
        ("--consumable-shares=half", "'half' is not disabled, memory, unlimited or a number"),
        ("--consumable-shares=0", "'0' is not"),
        ("--consumable-shares=-1", "'-1' is not"),
        ("--additional-xids-to-ignore=48,x63", "'x63' is not an XID"),
        ("--additional-xids-to-ignore=48,,63", "'' is not an XID"),
        ("--additional-xids-to-ignore=-1", "'-1' is not an XID"),
        ("--vmodule=a=4", "/debug/flags/v"),
        ("--mps-daemon-limits=memory", "'memory' is not one amount of a resource"),
        ("--mps-daemon-limits=memory=1Gi,memory=2Gi", "'memory=2Gi' is not one amount"),
        ("--mps-daemon-requests=memory=much", "much"),
        ("--mps-daemon-termination-grace-period-seconds=-1", "greater than or equal to 0"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(flag: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        read(flag)


@pytest.mark.parametrize("address", [":8080", "127.0.0.1:0", "[::1]:6060", "localhost:1", ""])
def test_addresses_that_can_be_listened_on(address: str) -> None:
    assert read(f"--http-endpoint={address}").http_endpoint == address


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("disabled", None),
        ("", None),
        ("unlimited", SharePolicy()),
        ("memory", SharePolicy(is_by_memory=True)),
        (" 4 ", SharePolicy(shares=4)),
        ("1", SharePolicy(shares=1)),
    ],
)
def test_how_devices_are_shared_is_one_of_four_ways(text: str, policy: SharePolicy | None) -> None:
    gate = "--feature-gates=ConsumableShares=true"
    assert read(f"--consumable-shares={text}", gate).shares == policy


def test_devices_are_not_shared_by_default() -> None:
    assert read().shares is None
    assert read("--feature-gates=ConsumableShares=true").shares is None


def test_xids_to_ignore_are_a_list_of_numbers() -> None:
    assert read("--additional-xids-to-ignore=48, 63").ignored_xids == {48, 63}
    assert read().ignored_xids == frozenset()


def test_the_gate_of_mps_needs_the_image_of_its_daemons() -> None:
    found = read("--feature-gates=MPSSupport=true", "--image-name=x", "--image-pull-secrets=a, b")
    assert found.pull_secrets == ("a", "b")
    assert read().pull_secrets == ()
