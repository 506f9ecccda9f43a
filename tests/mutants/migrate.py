"""Mutants of nvdra-migrate: values that would be lost, or carried to the wrong place."""

from typing import Final

from tests.mutants.mutant import Mutant

_MIGRATE: Final = "packages/nvdra-migrate/src/nvdra_migrate"
_MIGRATION: Final = "packages/nvdra-migrate/tests/unit/test_migration.py"
_COMMAND: Final = "packages/nvdra-migrate/tests/unit/test_command.py"

MUTANTS: Final = (
    Mutant(
        "migration: a value that was not carried does not count",
        f"{_MIGRATE}/migration.py",
        "all(each.status is not Status.NOT_CARRIED for each in self.outcomes)",
        "all(each.status for each in self.outcomes)",
        "Scripts go on with values that are not what somebody had set.",
        (_MIGRATION, _COMMAND),
    ),
    Mutant(
        "migration: defaults of the reference are carried",
        f"{_MIGRATE}/migration.py",
        "    if is_default or str(value) == known.default:",
        "    if str(value) == known.default:",
        "A copied file restarts the plugins of the whole fleet at once.",
        (_MIGRATION,),
    ),
    Mutant(
        "migration: each component gets the same name",
        f"{_MIGRATE}/rules.py",
        '        own = {f"{each}.{key}": f"{value}-{name}" for each, name in short.items()}',
        '        own = {f"{each}.{key}": value for each in short}',
        "Components would have the same objects.",
        (_MIGRATION,),
    ),
    Mutant(
        "migration: a quoted false is carried as true",
        f"{_MIGRATE}/rules.py",
        '        if value == "true":\n',
        "        if value:\n",
        "A driver is installed that somebody thought was off.",
        (_MIGRATION,),
    ),
    Mutant(
        "migration: a gate without its feature is carried in silence",
        f"{_MIGRATE}/rules.py",
        "    if is_on and name in gates.UNAVAILABLE_FEATURES:",
        "    if not is_on and name in gates.UNAVAILABLE_FEATURES:",
        "Nobody is told that passthrough is gone.",
        (_MIGRATION,),
    ),
)
