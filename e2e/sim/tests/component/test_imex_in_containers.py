# SPDX-License-Identifier: Apache-2.0
"""nvidia-imex where a container has nothing of the driver but what CDI mounts into it (§16.3)."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from nvdra_sim import imex_incidents
from nvdra_sim.filesystem import driver_root
from nvdra_sim.testing.imex_fixtures import CONFIG, MakeTray, Tray, wait_until

IP = "10.64.0.10"
REAL_NODES = {"render": {"nodes": "real"}, "node": {"imex": {"needs_capability": True}}}


class Container:
    """A root of its own on a tray, with bind mounts of single files, read-only."""

    def __init__(self, tray: Tray, name: str, devices: str = "nvidia-caps") -> None:
        self.tray, self.root = tray, tray.directory / name
        programs = driver_root.program_directory(tray.node.description)
        state = driver_root.state_path(tray.node.description)
        driver = tray.node.roots.driver
        for program in ("nvidia-imex", "nvidia-imex-ctl"):
            self._mount(driver / programs / program, f"usr/bin/{program}")
        self._mount(driver / state, state)
        for directory in ("imexd", "proc", "var/run", f"dev/{devices}"):
            (self.root / directory).mkdir(parents=True, exist_ok=True)
        tray.run("mount", "-t", "proc", "proc", self.root / "proc").check_returncode()
        source, target = tray.node.roots.dev / devices, self.root / "dev" / devices
        tray.run("mount", "--bind", source, target).check_returncode()
        settings = f"IMEX_CMD_BIND_INTERFACE_IP={IP}\nIMEX_NODE_CONFIG_FILE=/imexd/nodes.cfg\n"
        (self.root / "imexd/imexd.cfg").write_text(CONFIG + settings)
        (self.root / "imexd/nodes.cfg").write_text(f"{IP}\n")

    def _mount(self, source: Path, path: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
        self.tray.run("mount", "--bind", "-o", "ro", source, target).check_returncode()

    def start(self, stack: ExitStack) -> subprocess.Popen[bytes]:
        command = self.tray.host_command(
            "chroot", self.root, "nvidia-imex", "-c", "/imexd/imexd.cfg"
        )
        with self.log.open("wb") as log:
            started = subprocess.Popen(command, env={"PATH": "/usr/sbin:/usr/bin"}, stderr=log)
        stack.callback(started.wait, 20)
        stack.callback(started.kill)
        return started

    @property
    def log(self) -> Path:
        return self.root.with_suffix(".log")

    def word(self) -> str:
        command = ("chroot", self.root, "nvidia-imex-ctl", "-c", "/imexd/imexd.cfg", "-q")
        return self.tray.run(*command).stdout.strip()

    def becomes(self, word: str) -> None:
        wait_until(
            lambda: self.word() == word, lambda: f"{self.root.name}: {word}, not {self.word()!r}"
        )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what a test has started."""
    with ExitStack() as opened:
        yield opened


def test_a_container_needs_two_programs_the_state_file_and_the_capability(
    rack: MakeTray, stack: ExitStack
) -> None:
    tray = rack("tray-0", IP, **REAL_NODES)
    container = Container(tray, "container")
    daemon = container.start(stack)
    container.becomes("READY")
    imex_incidents.disturb(tray.state, never_ready=True)
    container.becomes("INIT_GPU")
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(timeout=20) == 0


def test_a_container_without_the_capability_is_refused(rack: MakeTray, stack: ExitStack) -> None:
    tray = rack("tray-0", IP, **REAL_NODES)
    container = Container(tray, "container", devices="dri")
    assert container.start(stack).wait(timeout=20) == 1
    missing = "the device node of the capability fabric-imex-mgmt is missing"
    assert missing in container.log.read_text()


def test_two_containers_of_a_host_have_one_instance_between_them(
    rack: MakeTray, stack: ExitStack
) -> None:
    tray = rack("tray-0", IP, **REAL_NODES)
    first, second = Container(tray, "first"), Container(tray, "second")
    running = first.start(stack)
    first.becomes("READY")
    assert second.start(stack).wait(timeout=20) == 1
    assert "another IMEX instance runs on this host" in second.log.read_text()
    running.kill()
    running.wait(timeout=20)
    second.start(stack)
    second.becomes("READY")
