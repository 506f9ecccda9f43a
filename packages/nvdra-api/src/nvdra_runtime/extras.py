"""Checks that the optional dependencies of a package are installed.

The distribution `nvdra-api` has an extra for each package of `nvdra_runtime` that has dependencies.
Each of these packages calls `require` when it is imported.
"""

from importlib.util import find_spec


def require(package: str, extra: str, *modules: str) -> None:
    """Check that the modules that an extra installs can be imported.

    Args:
        package: The importing package, for the error message.
        extra: Name of the extra.
        modules: Top-level modules that the extra installs.

    Raises:
        ImportError: At least one module is missing. The message names the extra.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise ImportError(
            f"{package} needs {', '.join(missing)}, which the extra '{extra}' installs: "
            f"pip install 'nvdra-api[{extra}]'",
            name=missing[0],
        )
