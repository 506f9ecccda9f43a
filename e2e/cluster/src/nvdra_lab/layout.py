# SPDX-License-Identifier: Apache-2.0
"""The paths of a lab: its state directory, and the cache, which stays when labs are removed.

/var/lib/nvdra-lab/<name>/
  lab.json               the decisions of its start (model.Lab)
  kernel.json            the kernel's settings before this lab, for `down`
  net                    the cluster's network namespace, a bind mount
  admin.kubeconfig       the kubeconfig of `lab env`
  kubectl-cache/         the discovery cache of kubectl
  machines/<m>/          control-plane, node-1, …
    plan.json              the steps of its init (machine_spec.Machine)
    status.json            the status of its init: units, process ids, restarts
    pid                    the init's process id on the host and its start time
    log/                   one file per unit and step
    var-lib/ var-log/ run/ the machine's /var/lib, /var/log and /run
    etc/                   changes of the machine's /etc: /etc/kubernetes
    lib/                   of a lab with passthrough: changes of its /lib: /lib/modules
    platform/              of a lab that is like a platform: where that has its driver

A lab on kind has kind.yaml in place of net, and of each machine run/nvidia only: its hardware.
"""

from pathlib import Path

CONTROL_PLANE = "control-plane"


def cgroup(lab: str, machine: str = "") -> str:
    """The cgroup of a machine, or of the whole lab, below the root of each hierarchy."""
    return f"nvdra-lab-{lab}/{machine}".rstrip("/")


class LabDir:
    """The state folder of one lab, as paths."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lab_file = root / "lab.json"
        self.net_namespace = root / "net"
        self.kernel_file = root / "kernel.json"
        self.admin_kubeconfig = root / "admin.kubeconfig"
        self.kubectl_cache = root / "kubectl-cache"
        self.machines = root / "machines"

    def machine(self, name: str) -> "MachineDir":
        """The folder of one machine."""
        return MachineDir(self.machines / name)


class MachineDir:
    """The folder of one machine, as paths on the host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plan_file = root / "plan.json"
        self.status_file = root / "status.json"
        self.pid_file = root / "pid"
        self.log = root / "log"
        self.var_lib = root / "var-lib"
        self.var_log = root / "var-log"
        self.run = root / "run"
        self.etc = root / "etc"
        self.etc_work = root / "etc-work"
        self.lib = root / "lib"
        self.lib_work = root / "lib-work"
        self.platform = root / "platform"
        self.platform_work = root / "platform-work"

    def on_host(self, path: str) -> Path:
        """The path on the host of a file below one of the machine's own directories."""
        for inside, outside in (("/var/lib", self.var_lib), ("/run", self.run), ("/etc", self.etc)):
            if path.startswith(f"{inside}/"):
                return outside / path.removeprefix(f"{inside}/")
        raise ValueError(path)

    def log_of(self, unit: str) -> Path:
        """The file with a unit's or step's output."""
        return self.log / f"{unit}.log"


class CacheDir:
    """Builds that are kept: Go if needed, binaries, images; and logs of failed starts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.binaries = root / "bin"
        self.go = root / "go/bin/go"
        self.images = root / "images"
        self.failed = root / "failed"
        self.hosts_lock = root / "lab.lock"
        self.builds_lock = root / "builds.lock"
        self.images_lock = root / "images.lock"


def cache_root(xdg_cache_home: str | None, home: Path) -> Path:
    """`${XDG_CACHE_HOME:-~/.cache}/nvdra`."""
    return (Path(xdg_cache_home) if xdg_cache_home else home / ".cache") / "nvdra"


def state_root(is_root: bool, xdg_state_home: str | None, home: Path) -> Path:
    """The folder of all labs: root's, or the user's own for clusters that need no root."""
    if is_root:
        return Path("/var/lib/nvdra-lab")
    return (Path(xdg_state_home) if xdg_state_home else home / ".local/state") / "nvdra-lab"
