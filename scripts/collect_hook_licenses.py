# SPDX-License-Identifier: Apache-2.0
"""Collects the licence texts of nvidia-cdi-hook and of the Go modules in it.

    python -m scripts.collect_hook_licenses

The images of the two plugins contain the program (images/licenses.py). Which modules it is made
of, it says itself; their texts are in Go's cache of modules, or come from its proxy. They are
written to images/hook_licenses, a folder for each module. A component test compares.
"""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

from scripts.release import LAB, REPOSITORY, ReleaseError, run

HOOK = "nvidia-cdi-hook"


def main() -> int:
    """Run the command; return its exit status."""
    try:
        made = collect(licenses().HOOK_TEXTS)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{made} modules")
    return 0


def licenses() -> ModuleType:
    """The module images/licenses.py, which is in no package: images are assembled with it."""
    path = REPOSITORY / "images" / "licenses.py"
    spec = importlib.util.spec_from_file_location("licenses", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def collect(target: Path) -> int:
    """Write the texts of every module; return how many modules there are.

    Raises:
        ReleaseError: A program failed, or a module has no text.
    """
    shutil.rmtree(target, ignore_errors=True)
    known = licenses()
    modules = known.go_modules(program(HOOK))
    for module, version in modules.items():
        source = (
            Path(_go("env", "GOROOT").strip()) if module == known.GO else _folder(module, version)
        )
        texts = [path for path in sorted(source.iterdir()) if path.is_file() and is_text(path)]
        if not texts:
            raise ReleaseError(f"{module} {version} has no licence text in {source}")
        (target / module).mkdir(parents=True)
        for text in texts:
            (target / module / text.name).write_bytes(text.read_bytes())
    return len(modules)


def is_text(path: Path) -> bool:
    """Whether a file at the root of a module is a licence text."""
    return bool(licenses().TEXT.search(path.name)) and path.suffix not in (".go", ".sh", ".py")


def program(name: str) -> Path:
    """A program of the lab, which is built if it is missing.

    Raises:
        ReleaseError: It cannot be built.
    """
    table = run([*LAB, "binaries", name], REPOSITORY)
    return Path(next(line.split()[1] for line in table.splitlines() if line.split()[:1] == [name]))


def _folder(module: str, version: str) -> Path:
    return Path(json.loads(_go("mod", "download", "-json", f"{module}@{version}"))["Dir"])


def _go(*arguments: str) -> str:
    (folder,) = (REPOSITORY / "e2e/cluster/binaries").glob("nvidia-container-toolkit-*")
    return run(["go", *arguments], folder, {"GOFLAGS": "-mod=mod"})


if __name__ == "__main__":
    sys.exit(main())
