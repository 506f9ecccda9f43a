# SPDX-License-Identifier: Apache-2.0
"""All mutants."""

from typing import Final

from tests.mutants import (
    api,
    cd_controller,
    cd_plugin,
    cdi,
    gpu_plugin,
    imex_daemon,
    migrate,
    webhook,
)

MUTANTS: Final = (
    *api.MUTANTS,
    *cdi.MUTANTS,
    *gpu_plugin.MUTANTS,
    *cd_plugin.MUTANTS,
    *cd_controller.MUTANTS,
    *imex_daemon.MUTANTS,
    *webhook.MUTANTS,
    *migrate.MUTANTS,
)
