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
