"""Assembles the files of one image: Python and what it needs, and a package with its dependencies.

    python3 /context/images/assemble.py nvdra-gpu-plugin --alias gpu-kubelet-plugin --hook

It runs in the first stage of the Dockerfiles, with the base image's Python and as root. The second
stage starts from nothing and copies the two trees that this leaves:

    /image/system        Python, the shared libraries, two small programs; the same for every image
    /image/application   /opt/nvdra with the package, its names in /usr/bin, the bill of materials

So an image has no shell, no package manager and no compiler, and whoever pulls two of them pulls
Python once. Wheels are installed by hash: /context/requirements has one file for each package.
"""

import argparse
import compileall
import csv
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import system_files

CONTEXT = Path(__file__).resolve().parent.parent
IMAGE = Path("/image")
VENV = Path("/opt/nvdra")
UNUSED = (
    "kubernetes/client",
    "kubernetes/aio/client/api",
    "kubernetes/aio/client/models",
)
"""Directories of site-packages that nothing imports: the synchronous client, and a class for each
group and kind of the API. They are 120 MiB, and nvdra speaks JSON (nvdra_runtime.kube)."""
KEPT = ("kubernetes/aio/client/models/__init__.py",)
"""What is imported of them."""
SHARED = ("nvdra-kill", "nvdra-check-installation")
"""Programs of nvdra-api that every image has, for `kubectl exec` and for the pod of `helm test`."""


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="Assemble the files of an image.")
    parser.add_argument("package", help="such as nvdra-gpu-plugin: a wheel and its program")
    parser.add_argument("--alias", required=True, help="its name in the reference driver")
    parser.add_argument("--hook", action="store_true", help="include nvidia-cdi-hook")
    arguments = parser.parse_args()
    system, application = IMAGE / "system", IMAGE / "application"
    system_files.copy(system)
    _install(arguments.package)
    _link_programs(application, arguments.package, arguments.alias)
    if arguments.hook:
        _copy_hook(application)
    shutil.copytree(VENV, application / VENV.relative_to("/"), symlinks=True)
    system_files.check_libraries(application, system)
    for tree in (system, application):
        _compile(tree)
    _write_bill_of_materials(arguments.package, system, application)
    for tree in (system, application):
        _settle_times(tree)
    return 0


def _install(package: str) -> None:
    """Make the virtual environment, without pip, with a package and its dependencies."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", VENV], check=True)
    python = VENV / "bin" / "python3"
    _pip(python, package)
    for folder in (VENV / "bin").iterdir():
        if not folder.name.startswith(("python", package, *SHARED)):
            folder.unlink()  # shell scripts that activate it, and programs of dependencies
    (site,) = VENV.glob("lib/python3*/site-packages")
    for unused in UNUSED:
        if (site / unused).exists():
            _remove(site, site / unused)


def _pip(python: Path | str, requirements: str) -> None:
    """Install wheels by hash, with a pip that is in an environment of its own."""
    tools = Path("/tools")
    if not tools.exists():
        subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    subprocess.run(
        [
            *(tools / "bin" / "pip", "--python", python, "--quiet", "--disable-pip-version-check"),
            *("install", "--no-cache-dir", "--no-compile", "--no-index", "--no-deps"),
            *("--only-binary=:all:", "--require-hashes", f"--find-links={CONTEXT / 'wheels'}"),
            f"--requirement={CONTEXT / 'requirements' / requirements}.txt",
        ],
        check=True,
    )


def _remove(site: Path, folder: Path) -> None:
    """Remove a directory of a distribution, and its files from the distribution's list."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif str(path.relative_to(site)) not in KEPT:
            path.unlink()
    name = folder.relative_to(site).parts[0]
    for record in site.glob(f"{name}-*.dist-info/RECORD"):
        rows = [row for row in csv.reader(record.open()) if (site / row[0]).exists()]
        with record.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


def _link_programs(application: Path, package: str, alias: str) -> None:
    programs = application / "usr" / "bin"
    programs.mkdir(parents=True)
    (programs / package).symlink_to(VENV / "bin" / package)
    (programs / alias).symlink_to(package)
    # `kubectl exec POD -- kill -s SIGUSR2 1` asks a program for its stacks.
    (programs / "kill").symlink_to(VENV / "bin" / "nvdra-kill")


def _copy_hook(application: Path) -> None:
    hook = application / "usr" / "bin" / "nvidia-cdi-hook"
    shutil.copyfile(CONTEXT / hook.name, hook)
    hook.chmod(0o755)


def _compile(tree: Path) -> None:
    """Compile all Python of a tree, so that no container does it when it starts.

    The files of an image never change, so the byte code is used without a look at its source.
    """
    compiled = compileall.compile_dir(
        tree,
        quiet=1,
        stripdir=str(tree),
        prependdir="/",
        workers=0,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    if not compiled:
        raise SystemExit(f"error: {tree} has Python that does not compile")


def _write_bill_of_materials(package: str, system: Path, application: Path) -> None:
    """Write it by a program in the environment of the tools, which has a library for it."""
    _pip("/tools/bin/python3", "tools")
    site = next((application / VENV.relative_to("/")).glob("lib/python3*/site-packages"))
    target = application / "usr/share/doc" / package / "sbom.cdx.json"
    target.parent.mkdir(parents=True)
    program = CONTEXT / "images" / "bill_of_materials.py"
    argv = ["/tools/bin/python3", program, package, site, system, target]
    hook = application / "usr/bin/nvidia-cdi-hook"
    subprocess.run([*argv, *((hook,) if hook.exists() else ())], check=True)


def _settle_times(tree: Path) -> None:
    """Give every file the same time, so that equal contents make equal layers."""
    when = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    for path in (tree, *tree.rglob("*")):
        os.utime(path, (when, when), follow_symlinks=False)


if __name__ == "__main__":
    sys.exit(main())
