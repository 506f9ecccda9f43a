# SPDX-License-Identifier: Apache-2.0
"""The container runtimes that nodes can have: how they start, and how images get into them.

All read CDI specs from /etc/cdi and /var/run/cdi and start Debian's runc. A further runtime is a
further row of `RUNTIMES`.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping

from nvdra_lab.versions import DEFAULT_RUNTIME

PAUSE_IMAGE = "docker.io/nvdra/pause:1"
CNI_PROGRAMS = "/usr/lib/cni"  # of Debian's containernetworking-plugins
RUNC = "/usr/sbin/runc"  # Debian's, also if PATH has another one
CTR_NAMESPACE = "--namespace=k8s.io"  # of the kubelet's images, as an argument of ctr
CTR_IMPORT = (CTR_NAMESPACE, "images", "import")
STORAGE = (
    "--root=/var/lib/containers/storage",
    "--runroot=/run/containers/storage",
    "--storage-driver=overlay",
)
"""The store that CRI-O reads, as arguments of buildah."""

Programs = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A container runtime.

    Attributes:
        name: What `--runtime` takes, and the name of the component on each node.
        group: The group of programs that it has besides those of every lab; empty: none.
        socket: Where the kubelet connects.
        packages: Program → Debian package, of what it needs besides what every lab needs.
        has_linked_layers: Whether `ContainerdStore` can link layers of an image between nodes.
        start: Its command line.
        files: Its configuration, by path.
        import_image: The command that imports an archive of one OCI image.
        tag_image: The command that gives an image another name.
    """

    name: str
    group: str
    socket: str
    packages: Mapping[str, str]
    has_linked_layers: bool
    start: Callable[[Programs], tuple[str, ...]]
    files: Callable[[Programs], dict[str, str]]
    import_image: Callable[[Programs, str], tuple[str, ...]]
    tag_image: Callable[[Programs, str, str], tuple[str, ...]]


def _containerd(name: str, group: str, config: Callable[[], str]) -> Runtime:
    return Runtime(
        name=name,
        group=group,
        socket="/run/containerd/containerd.sock",
        packages={},
        has_linked_layers=True,
        start=lambda programs: (programs["containerd"],),
        files=lambda _: {"/etc/containerd/config.toml": config()},
        import_image=lambda programs, archive: (programs["ctr"], *CTR_IMPORT, archive),
        tag_image=lambda programs, image, alias: (
            *(programs["ctr"], CTR_NAMESPACE, "images", "tag", "--force"),
            *(image, alias),
        ),
    )


def containerd_config() -> str:
    """Containerd 2 with its default paths and CDI; the same on every node.

    `restrict_oom_score_adj`: in a container the score cannot be lowered. The defaults of the `opt`
    directory and of NRI are in /opt, which belongs to the host.
    """
    return f"""\
version = 3
disabled_plugins = [
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  restrict_oom_score_adj = true

  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{CNI_PROGRAMS}"]
    conf_dir = "/etc/cni/net.d"

  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{RUNC}"
      SystemdCgroup = false
"""


def containerd_1_7_config() -> str:
    """Containerd 1.7, where CDI is off until `enable_cdi` says otherwise."""
    return f"""\
version = 2
disabled_plugins = [
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE_IMAGE}"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PROGRAMS}"
    conf_dir = "/etc/cni/net.d"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{RUNC}"
      SystemdCgroup = false
"""


def crio_config(programs: Programs) -> str:
    """CRI-O with its default capabilities and store; its port for streams is any free one."""
    return f"""\
[crio]
root = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
storage_driver = "overlay"
log_dir = "/var/log/crio/pods"
version_file = "/run/crio/version"
clean_shutdown_file = "/var/lib/crio/clean.shutdown"

[crio.api]
listen = "/run/crio/crio.sock"
stream_port = "0"

[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
container_attach_socket_dir = "/run/crio"
container_exits_dir = "/run/crio/exits"
namespaces_dir = "/run/crio/ns"
pinns_path = "{programs["pinns"]}"

[crio.runtime.runtimes.runc]
runtime_path = "{programs["runc-in-container"]}"
runtime_type = "oci"
runtime_root = "/run/runc"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"

[crio.image]
pause_image = "{PAUSE_IMAGE}"
pause_command = "/pause"

[crio.network]
network_dir = "/etc/cni/net.d"
plugin_dirs = ["{CNI_PROGRAMS}"]
"""


RUNTIMES: Mapping[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        _containerd(DEFAULT_RUNTIME, "", containerd_config),
        _containerd("containerd-1.7", "containerd-v1", containerd_1_7_config),
        Runtime(
            name="cri-o",
            group="cri-o",
            socket="/run/crio/crio.sock",
            packages={"/usr/bin/conmon": "conmon"},
            has_linked_layers=False,
            start=lambda programs: (programs["crio"], "--config=/etc/crio/crio.conf"),
            files=lambda programs: {
                "/etc/crio/crio.conf": crio_config(programs),
                "/etc/containers/policy.json": json.dumps(
                    {"default": [{"type": "insecureAcceptAnything"}]}
                ),
            },
            import_image=lambda _, archive: ("buildah", *STORAGE, "pull", f"oci-archive:{archive}"),
            tag_image=lambda _, image, alias: ("buildah", *STORAGE, "tag", image, alias),
        ),
    )
}
