"""The plugin as a user installs it: wheels of the checkout in an environment of their own."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from nvdra_lab import commands, wheels
from nvdra_lab.environment import Environment

PACKAGES = ("nvdra-api", "nvdra-cdi", "nvdra-gpu-plugin")


def program(environment: Environment) -> Path:
    """The plugin's program, installed from wheels of what is in the checkout now.

    The environment is kept in the build cache and used again while wheels and lock file say the
    same. Byte code is compiled, as in the image.

    Raises:
        LabError: The words of the program that failed.
    """
    path = f"{environment.repository / '.tools/bin'}:{environment.path}"
    uv = shutil.which("uv", path=path) or "uv"
    lock = environment.repository / "requirements.lock"
    with tempfile.TemporaryDirectory() as directory:
        ours = Path(directory)
        folders = [environment.repository / "packages" / name for name in PACKAGES]
        wheels.build(folders, ours, path, environment.variables)
        built = sorted(ours.glob("*.whl"))
        target = environment.cache.root / "bench" / _digest([lock, *built], environment.python)
        if not (target / "complete").exists():
            shutil.rmtree(target.parent, ignore_errors=True)
            commands.run([uv, "venv", "--quiet", "--python", environment.python, target])
            python = f"--python={target / 'bin/python'}"
            install = [uv, "pip", "install", "--quiet", "--compile-bytecode", python]
            commands.run(
                [*install, *built], env={**environment.variables, "UV_CONSTRAINT": str(lock)}
            )
            (target / "complete").touch()
    return target / "bin" / "nvdra-gpu-plugin"


def _digest(files: list[Path], python: str) -> str:
    digest = hashlib.sha256(python.encode())
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
