# SPDX-License-Identifier: Apache-2.0
"""A copy of the repository with an environment of its own, in which files may be changed.

The environment's files are links to those of the checkout; only what names the checkout's path is
written anew, so a copy is made in a second or two.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_ENVIRONMENT = ".venv"


class ScratchTree:
    """One copy."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """Have a file with this text for the block."""
        path = self.root / file
        before = path.read_bytes()
        self._write(path, text.encode())
        try:
            yield
        finally:
            self._write(path, before)

    def run_tests(
        self, tests: tuple[str, ...], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run tests until the first one fails.

        Raises:
            subprocess.TimeoutExpired: They have not ended in time.
        """
        binaries = self.root / _ENVIRONMENT / "bin"
        argv = [str(binaries / "python"), "-m", "pytest", "-q", "-x", "-p", "no:randomly"]
        argv += ["-p", "no:cacheprovider", "--no-header", "--tb=line"]
        # A fault may make a test hang; a unit test that works takes a second.
        argv += ["--timeout=30"] if all("/unit/" in test for test in tests) else []
        environ = {
            **os.environ,
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self.root / _ENVIRONMENT),
        }
        return subprocess.run(
            [*argv, *tests],
            cwd=self.root,
            env=environ,
            timeout=timeout_s,
            capture_output=True,
            text=True,
            check=False,
        )

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file whose compiled form is not used again.

        A compiled form is taken for current if the file has its size and its time in seconds.
        """
        path.write_bytes(content)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


@contextmanager
def copied(directory: Path) -> Iterator[ScratchTree]:
    """Copy what git knows or would add, and the environment; remove the copy afterwards."""
    root = directory / "nvdra"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source = REPOSITORY / name
        if source.is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, root / name)
    # Some tests read what git knows.
    subprocess.run(["git", "init", "--quiet", "."], cwd=root, check=True)
    subprocess.run(["git", "add", "--all"], cwd=root, check=True)
    _copy_environment(root)
    try:
        yield ScratchTree(root)
    finally:
        shutil.rmtree(root)


def _copy_environment(root: Path) -> None:
    """Copy the environment, whose programs and links name the checkout by its path."""
    target = root / _ENVIRONMENT
    shutil.copytree(REPOSITORY / _ENVIRONMENT, target, symlinks=True, copy_function=_link)
    named = [*(target / "bin").iterdir(), *target.glob("lib/*/site-packages/*.pth")]
    for path in named:
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        if (here := str(REPOSITORY).encode()) in content:
            mode = path.stat().st_mode
            path.unlink()  # never through the link: the checkout keeps its own
            path.write_bytes(content.replace(here, str(root).encode()))
            path.chmod(mode)


def _link(source: str, target: str) -> None:
    try:
        Path(target).hardlink_to(source)
    except OSError:  # another file system
        shutil.copy2(source, target)
