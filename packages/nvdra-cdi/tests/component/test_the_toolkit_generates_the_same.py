"""Our documents beside those of `nvidia-ctk cdi generate --mode=nvml`, toolkit 1.20.1.

They are equal but for what `corrected` does to the toolkit's, each a deviation of spec/cdi.md. The
toolkit reads sysfs at /sys only, so it runs with the simulated one mounted there; needs root.
"""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from nvdra_cdi import codec, files
from nvdra_cdi.model import Device, DeviceNode, Hook, Spec
from nvdra_cdi.nvidia import generator
from nvdra_cdi.nvidia.assemble import assemble
from nvdra_cdi.nvidia.options import NEW_IN_1_20, Gpu, HookName, Options

KIND = "nvidia.com/gpu"
HOOK = "/usr/bin/nvidia-cdi-hook"


@pytest.fixture
def node(sim_node):
    """Makes a simulated node with real device nodes, which the toolkit insists on."""

    def make(profile: str, **render):
        return sim_node(profile, render={"nodes": "real", **render})

    return make


@pytest.fixture
def toolkit(nvidia_ctk: Path):
    """Runs the toolkit on a node and returns its document."""

    def run(node, *arguments: str) -> Spec:
        in_place = 'mount --bind "$1" /sys && shift && exec "$@"'
        result = node.run(
            *("unshare", "--mount", "sh", "-c", in_place, "sh", node.roots.sys),
            *(nvidia_ctk, "--quiet", "cdi", "generate", "--mode=nvml", "--format=json"),
            *("--no-all-device", "--device-name-strategy=uuid", f"--nvidia-cdi-hook-path={HOOK}"),
            *(f"--driver-root={node.roots.driver}", f"--dev-root={node.roots.dev.parent}"),
            *arguments,
        )
        assert result.returncode == 0, result.stderr
        return codec.loads(result.stdout.encode())

    return run


def ours(node, **options) -> Spec:
    """Our document for the same node and arguments."""
    given = Options(
        driver_root=str(node.roots.driver),
        dev_root=str(node.roots.dev.parent),
        sys_root=str(node.roots.sys),
        hook_path=HOOK,
        **options,
    )
    gpus = [Gpu(gpu.uuid, gpu.minor, gpu.bus_id) for gpu in node.description.gpus]
    devices = [Device(gpu.uuid, generator.gpu_edits(given, gpu)) for gpu in gpus]
    return assemble(KIND, generator.common_edits(given), devices)


def corrected(theirs: Spec, node) -> Spec:
    """The toolkit's document as cdi.md wants it.

    §13.6: a node has its type, so that it can be injected even when it leaves the host in between.
    §16.1: a by-path link lies at its path in the container, without the dev root in front.
    """

    def with_type(found: DeviceNode) -> DeviceNode:
        return replace(found, type="c")

    def with_links_in_the_container(hook: Hook) -> Hook:
        outside = f"::{node.roots.dev}/dri/by-path/"
        args = (arg.replace(outside, "::/dev/dri/by-path/") for arg in hook.args)
        return replace(hook, args=tuple(args))

    def edits(found):
        return replace(
            found,
            device_nodes=tuple(map(with_type, found.device_nodes)),
            hooks=tuple(map(with_links_in_the_container, found.hooks)),
        )

    return replace(
        theirs,
        container_edits=edits(theirs.container_edits),
        devices=tuple(replace(d, container_edits=edits(d.container_edits)) for d in theirs.devices),
    )


@pytest.mark.parametrize("profile", ["dgx-h100", "gb200-nvl72", "l40s", "mixed-shuffled"])
def test_every_gpu_of_a_node_gets_the_toolkits_edits(node, toolkit, profile):
    made = node(profile)
    generated = ours(made)
    assert generated == corrected(toolkit(made), made)
    assert len(generated.devices) == len(made.description.gpus)


@pytest.mark.parametrize("layout", ["rhel", "cos"])
def test_a_driver_is_found_wherever_it_was_installed(node, toolkit, layout):
    made = node("t4", layout=layout)
    assert ours(made) == corrected(toolkit(made), made)


def test_the_rarer_files_of_a_driver_are_found_where_the_toolkit_finds_them(node, toolkit):
    made = node("l40s")
    root, version = made.roots.driver, made.description.driver.version
    libraries = "usr/lib/x86_64-linux-gnu"
    for path in (
        f"{libraries}/libnvidia-egl-wayland.so.1.1.19",
        f"{libraries}/libnvidia-egl-wayland2.so.1.0.0",
        f"{libraries}/libnvidia-egl-xcb.so.1.0.1",
        f"{libraries}/libnvidia-vulkan-producer.so.{version}",
        f"{libraries}/libnvidia-nvvm70.so.4",
        f"{libraries}/nvidia/xorg/libglxserver_nvidia.so.{version}",
        f"usr/lib64/libnvidia-gtk3.so.{version}",
        "usr/lib/xorg/modules/drivers/nvidia_drv.so",
        "usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json",
        "usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
        "usr/local/share/vulkan/implicit_layer.d/nvidia_layers.json",
        "vulkan/icd.d/nvidia_icd.x86_64.json",
        f"lib/firmware/updates/nvidia/{version}/ucodes_gb20x.bin",
        "usr/local/bin/nvidia-xconfig",
        "sbin/nvidia-imex-ctl",
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / libraries / f"libcuda.so.{version}", root / path)
        (root / path).chmod(0o755)
    (root / libraries / "libnvidia-gtk3.so").symlink_to(f"../../lib64/libnvidia-gtk3.so.{version}")
    generated = ours(made, enabled_hooks={HookName.CHMOD}, ldconfig_path="/sbin/ldconfig.real")
    theirs = toolkit(made, "--enable-hook=chmod", "--ldconfig-path=/sbin/ldconfig.real")
    assert generated == corrected(theirs, made)


def test_libraries_that_only_the_linkers_cache_knows_are_found(node, toolkit, tmp_path: Path):
    made = node("t4")
    root = tmp_path / "moved"
    sockets = shutil.ignore_patterns("run")
    shutil.copytree(made.roots.driver, root, symlinks=True, ignore=sockets)
    moved = root / "opt/nvidia/lib"
    moved.parent.mkdir(parents=True)
    (root / "usr/lib/x86_64-linux-gnu").rename(moved)
    subprocess.run(["ldconfig", "-r", root, "/opt/nvidia/lib"], check=True)
    environment = {**made.environment, "LD_LIBRARY_PATH": str(moved)}
    elsewhere = replace(made, roots=replace(made.roots, driver=root), environment=environment)
    generated = ours(elsewhere)
    assert generated == corrected(toolkit(elsewhere), elsewhere)
    assert "NVIDIA_CTK_LIBCUDA_DIR=/opt/nvidia/lib" in generated.container_edits.env


def test_without_the_hooks_new_in_1_20_it_is_still_the_toolkits_document(node, toolkit):
    made = node("l40s")
    off = [f"--disable-hook={hook}" for hook in sorted(NEW_IN_1_20)]
    assert ours(made, disabled_hooks=NEW_IN_1_20) == corrected(toolkit(made, *off), made)


def test_a_document_for_another_root_is_the_toolkits_after_its_root_transform(
    node, toolkit, nvidia_ctk, tmp_path: Path
):
    made = node("l40s")
    target = "/run/nvidia/driver"
    (tmp_path / "theirs.yaml").write_bytes(codec.dumps(corrected(toolkit(made), made)))
    moved = made.run(
        *(nvidia_ctk, "--quiet", "cdi", "transform", "root", f"--from={made.roots.driver}"),
        *(f"--to={target}", f"--input={tmp_path / 'theirs.yaml'}"),
    )
    assert moved.returncode == 0, moved.stderr
    assert ours(made, target_driver_root=target) == codec.loads(moved.stdout.encode())


def test_the_toolkit_reads_what_we_write_and_would_write_the_same_bytes(
    node, nvidia_ctk, tmp_path: Path
):
    made = node("dgx-h100")
    files.write(ours(made), tmp_path / "ours.yaml")
    listed = made.run(nvidia_ctk, "--quiet", "cdi", "list", f"--spec-dir={tmp_path}")
    assert listed.stdout.split() == sorted(f"{KIND}={gpu.uuid}" for gpu in made.description.gpus)
    again = made.run(
        *(nvidia_ctk, "--quiet", "cdi", "transform", "root", "--from=/a", "--to=/b"),
        f"--input={tmp_path / 'ours.yaml'}",
    )
    assert again.stdout == (tmp_path / "ours.yaml").read_text()
