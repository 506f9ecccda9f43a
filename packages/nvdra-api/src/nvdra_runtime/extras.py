# SPDX-License-Identifier: Apache-2.0
"""Checks that the optional dependencies of a package are installed.

The distribution `nvdra-api` has an extra for each package of `nvdra_runtime` that has dependencies.
Each of these packages calls `require` when it is imported.
"""

from importlib.util import find_spec


class MissingExtraError(ImportError):
    """Modules of an extra are not installed. The message says how to install it."""


def require(package: str, extra: str, *modules: str) -> None:
    """Check that the modules that an extra installs can be imported.

    Args:
        package: The importing package, for the error message.
        extra: Name of the extra.
        modules: Top-level modules that the extra installs.

    Raises:
        MissingExtraError: At least one module is missing.
    """
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingExtraError(
            f"{package} needs {', '.join(missing)}, which the extra '{extra}' installs: "
            f"pip install 'nvdra-api[{extra}]'",
            name=missing[0],
        )
