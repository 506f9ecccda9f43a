"""All mutants."""

from tests.mutants import (
    api,
)

MUTANTS = (*api.MUTANTS,)
