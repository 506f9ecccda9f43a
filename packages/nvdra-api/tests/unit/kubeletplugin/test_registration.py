# SPDX-License-Identifier: Apache-2.0
import pytest
from nvdra_runtime.kubeletplugin import registration


def test_the_sockets_of_a_driver_have_the_names_that_the_kubelet_looks_for() -> None:
    paths = registration.socket_paths(
        "gpu.nvidia.com",
        "/var/lib/kubelet/plugins/gpu.nvidia.com",
        "/var/lib/kubelet/plugins_registry/",
    )
    assert paths.dra == "/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock"
    assert paths.registration == "/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock"


def test_the_driver_offers_v1_before_v1beta1() -> None:
    paths = registration.socket_paths("d.example", "/p/d.example", "/r")
    assert registration.plugin_info("d.example", paths) == registration.PluginInfo(
        driver="d.example",
        endpoint="/p/d.example/dra.sock",
        services=("v1.DRAPlugin", "v1beta1.DRAPlugin"),
    )


@pytest.mark.parametrize("bytes_", [107, 108])
def test_a_socket_path_may_have_107_bytes_and_no_more(bytes_: int) -> None:
    plugin_dir = "/" + "é" * ((bytes_ - len("/") - len("/dra.sock")) // 2)
    plugin_dir += "x" * (bytes_ - len(plugin_dir.encode()) - len("/dra.sock"))
    if bytes_ == 107:
        assert registration.socket_paths("d", plugin_dir, "/r").dra == f"{plugin_dir}/dra.sock"
    else:
        with pytest.raises(ValueError, match=r"108 bytes, 107 are allowed"):
            registration.socket_paths("d", plugin_dir, "/r")


def test_a_relative_socket_path_is_refused() -> None:
    with pytest.raises(ValueError, match="relative"):
        registration.socket_paths("d", "plugins/d", "/r")


UID = "ad4af911-5bcd-47c5-a554-f35cea869472"
REGISTRY = "/var/lib/kubelet/plugins_registry"


@pytest.mark.parametrize(
    ("driver", "expected", "length"),
    [
        ("gpu.nvidia.com", f"gpu.nvidia.com-{UID}-reg.sock", 94),
        ("compute-domain.nvidia.com", f"compute-domain.nvidia.com-{UID}-reg.sock", 105),
        (
            "gpu.dra-example-driver.sigs.k8s.io",
            "gpu.dra-example-driver.sigs.k8s.io-Jk8-oymVURI-reg.sock",
            89,
        ),
    ],
)
def test_an_instance_has_the_sockets_of_the_go_helper(
    driver: str, expected: str, length: int
) -> None:
    plugin_dir = f"/var/lib/kubelet/plugins/{driver}"
    paths = registration.instance_socket_paths(driver, plugin_dir, REGISTRY, UID)
    assert paths == registration.SocketPaths(
        f"{plugin_dir}/dra-{UID}.sock", f"{REGISTRY}/{expected}"
    )
    assert len(paths.registration) == length
    assert registration.is_registration_socket(driver, expected)


def test_paths_that_are_too_long_are_hashed_and_never_have_more_than_107_bytes() -> None:
    driver = "gpu.dra-example-driver.sigs.k8s.io"
    registry = "/" + "r" * 60
    paths = registration.instance_socket_paths(driver, "/" + "p" * 70, registry, UID)
    assert paths == registration.SocketPaths(
        "/" + "p" * 70 + "/dra-Jk8-oymVURI.sock", f"{registry}/dra-i1uYBA3g7FMHZvgPIxSbNw-reg.sock"
    )
    fits = "/" + "r" * (106 - len("/dra-i1uYBA3g7FMHZvgPIxSbNw-reg.sock"))
    found = registration.instance_socket_paths(driver, "/p", fits, UID)
    assert found is not None
    assert len(found.registration) == 107
    assert registration.instance_socket_paths(driver, "/p", fits + "r", UID) is None
    assert registration.instance_socket_paths(driver, "/" + "p" * 100, "/r", UID) is None


def test_without_a_pod_there_are_no_sockets_of_an_instance() -> None:
    assert registration.instance_socket_paths("d.example", "/p", "/r", "") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu.nvidia.com-reg.sock", True),
        (f"gpu.nvidia.com-{UID}-reg.sock", True),
        ("gpu.nvidia.com-Jk8-oymVURI-reg.sock", True),
        ("gpu.nvidia.com-foo-reg.sock", False),
        ("gpuXnvidia.com-reg.sock", False),
        (f"compute-domain.nvidia.com-{UID}-reg.sock", False),
        ("dra-i1uYBA3g7FMHZvgPIxSbNw-reg.sock", False),
    ],
)
def test_the_registration_sockets_of_a_driver_are_told_from_those_of_others(
    name: str, expected: bool
) -> None:
    assert registration.is_registration_socket("gpu.nvidia.com", name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("dra.sock", True), (f"dra-{UID}.sock", True), ("mps.sock", False), (".dra.sock", False)],
)
def test_the_dra_sockets_in_a_drivers_directory_are_known(name: str, expected: bool) -> None:
    assert registration.is_dra_socket(name) is expected
