# SPDX-License-Identifier: Apache-2.0
"""Assembles the last layer of an image: a component, and what only that one depends on.

    python3 /images/application.py nvdra-gpu-plugin --alias gpu-kubelet-plugin --hook --modprobe

The first three stages of a Dockerfile run a program each, with the base image's Python and as root;
each leaves a tree. The last stage starts from nothing and copies them, a layer for each:

    system_files.py   /image/system        Python, shared libraries, two small programs
    libraries.py      /image/libraries     /opt/nvdra with what every image has of others' packages
    application.py    /image/application   in /opt/nvdra our packages and what only this one needs;
                                           its names in /usr/bin, other programs that it runs,
                                           licences, the bill of materials

So an image has no shell, no package manager and no compiler. Whoever pulls two of them pulls the
first two layers once, and an update that leaves the dependencies alone is the last one only. Wheels
are installed by hash. The lists of hashes are copied into the stages, which tells a builder that
does not look into mounts when what it has kept is outdated.
"""

import argparse
import shutil
import subprocess
from pathlib import Path

import environment
import licenses
import modprobe
import system_files
import trees
from libraries import LIBRARIES, REQUIREMENTS

APPLICATION = Path("/image/application")
HOOK = Path("/nvidia-cdi-hook")
SHARED = ("nvdra-kill", "nvdra-check-installation")
"""Programs of nvdra-api that every image has, for `kubectl exec` and for the pod of `helm test`."""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Assemble the last layer of an image.")
    parser.add_argument("package", help="such as nvdra-gpu-plugin: a wheel and its program")
    parser.add_argument("--alias", required=True, help="its name in the reference driver")
    parser.add_argument("--hook", action="store_true", help="include nvidia-cdi-hook")
    parser.add_argument("--modprobe", action="store_true", help="include modprobe")
    arguments = parser.parse_args()
    if arguments.modprobe:  # first, when the tree has no files that other packages may have, too
        modprobe.copy(APPLICATION)
    environment.install(REQUIREMENTS / f"{arguments.package}.txt")
    environment.remove_unused()
    environment.remove_programs(arguments.package, *SHARED)
    _copy_new_files()
    _link_programs(arguments.package, arguments.alias)
    if arguments.hook:
        _copy_hook()
        licenses.copy_hook_texts(HOOK, APPLICATION)
    licenses.copy_headers(environment.site_packages(), APPLICATION)
    system_files.check_libraries(APPLICATION, LIBRARIES, system_files.SYSTEM)
    _write_bill_of_materials(arguments.package, with_hook=arguments.hook)
    trees.finish(APPLICATION)


def _copy_new_files() -> None:
    """Copy what the environment has now, and did not have when the shared packages were copied."""
    for path in environment.VENV.rglob("*"):
        place = path.relative_to("/")
        is_file = path.is_symlink() or path.is_file()
        if is_file and not (LIBRARIES / place).is_symlink() and not (LIBRARIES / place).exists():
            target = APPLICATION / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)


def _link_programs(package: str, alias: str) -> None:
    programs, own = APPLICATION / "usr" / "bin", environment.VENV / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    (programs / package).symlink_to(own / package)
    (programs / alias).symlink_to(package)
    # `kubectl exec POD -- kill -s SIGUSR2 1` asks a program for its stacks.
    (programs / "kill").symlink_to(own / "nvdra-kill")


def _copy_hook() -> None:
    hook = APPLICATION / "usr" / "bin" / HOOK.name
    shutil.copyfile(HOOK, hook)
    hook.chmod(0o755)


def _write_bill_of_materials(package: str, *, with_hook: bool) -> None:
    """Write it by a program in the environment of the tools, which has a library for it."""
    subprocess.run(
        [
            environment.TOOLS / "bin" / "python3",
            Path(__file__).with_name("bill_of_materials.py"),
            *(package, environment.site_packages(), system_files.SYSTEM, APPLICATION),
            *((HOOK,) if with_hook else ()),
        ],
        check=True,
    )


if __name__ == "__main__":
    main()
