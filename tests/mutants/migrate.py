# SPDX-License-Identifier: Apache-2.0
"""Mutants of nvdra-migrate: values that would be lost, or carried to the wrong place."""

from typing import Final

from tests.mutants.mutant import Mutant

_MIGRATE: Final = "packages/nvdra-migrate/src/nvdra_migrate"
_MIGRATION: Final = "packages/nvdra-migrate/tests/unit/test_migration.py"
_COMMAND: Final = "packages/nvdra-migrate/tests/unit/test_command.py"
_WRAPPED: Final = "packages/nvdra-migrate/tests/unit/test_wrapped_values.py"
_SCALARS: Final = "packages/nvdra-migrate/tests/unit/test_helm_scalars.py"
_SETTINGS: Final = "packages/nvdra-migrate/tests/unit/test_helm_values.py"
_TEXT: Final = "packages/nvdra-migrate/tests/unit/test_values_text.py"

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
        "migration: a registry of a vendor is proposed for the images of nvdra",
        f"{_MIGRATE}/rules.py",
        '    is_own = has_host and not f"{registry}/".startswith(_OF_VENDORS)\n',
        "    is_own = has_host\n",
        "A user is sent to a registry to which they cannot push.",
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
    Mutant(
        "wrapped values: the first of several parts is taken",
        f"{_MIGRATE}/wrapped_values.py",
        "    if len(found) > 1:\n",
        "    if len(found) > 99:\n",
        "A cluster gets the values of another one.",
        (_WRAPPED, _COMMAND),
    ),
    Mutant(
        "wrapped values: values of another chart are taken",
        f"{_MIGRATE}/wrapped_values.py",
        "    seems_reference = not release.chart and (",
        "    seems_reference = (",
        "The GPU operator's values end in a file of nvdra.",
        (_WRAPPED,),
    ),
    Mutant(
        "wrapped values: a file without values of the chart is an empty one",
        f"{_MIGRATE}/wrapped_values.py",
        "    if not found and parts:\n",
        "    if not found and not parts:\n",
        "An installation loses all its values, with the exit status 0.",
        (_WRAPPED, _COMMAND),
    ),
    Mutant(
        "wrapped values: values that a file only names are not told",
        f"{_MIGRATE}/wrapped_values.py",
        "            if len(parts) > 1\n",
        "            if parts\n",
        "The values of a ConfigMap are lost, with the exit status 0.",
        (_WRAPPED,),
    ),
    Mutant(
        "wrapped values: the switch of a dependency is no value",
        f"{_MIGRATE}/wrapped_values.py",
        '    if isinstance(values.get("enabled"), bool):\n',
        '    if values.get("enabled") is None:\n',
        "Each umbrella's `enabled` is said to have had no effect.",
        (_WRAPPED,),
    ),
    Mutant(
        "wrapped values: globals of the chart around are not told",
        f"{_MIGRATE}/wrapped_values.py",
        "    return NVDRA_GLOBALS & own.keys() if",
        "    return NVDRA_GLOBALS - own.keys() if",
        "The umbrella's registry replaces nvdra's unseen.",
        (_WRAPPED,),
    ),
    Mutant(
        "wrapped values: the values object is over the parameters",
        f"{_MIGRATE}/chart_releases.py",
        "    values = helm_values.with_settings(values, parameters)\n",
        "    values = helm_values.with_settings(values, [])\n",
        "What was set in Argo CD's interface is lost.",
        (_WRAPPED,),
    ),
    Mutant(
        "wrapped values: an empty object does not hide the text",
        f"{_MIGRATE}/chart_releases.py",
        "        if whole is None\n",
        "        if not whole\n",
        "Values come back that Argo CD has not used.",
        (_WRAPPED,),
    ),
    Mutant(
        "wrapped values: the config of k3s is left out",
        f"{_MIGRATE}/chart_releases.py",
        "    for found in (part, *same):\n",
        "    for found in (part,):\n",
        "What was changed for the cluster is lost.",
        (_WRAPPED,),
    ),
    Mutant(
        "wrapped values: a folder's name is its chart's",
        f"{_MIGRATE}/chart_releases.py",
        '    may_differ = is_folder or text.startswith((".", "/"))\n',
        '    may_differ = text.startswith((".", "/"))\n',
        "Charts from Git are refused.",
        (_WRAPPED,),
    ),
    Mutant(
        "helm's scalars: y is a text",
        f"{_MIGRATE}/helm_scalars.py",
        '(True, ("y", "yes", "true", "on")),',
        '(True, ("yes", "true", "on")),',
        "A switch that was on is carried as a text.",
        (_SCALARS,),
    ),
    Mutant(
        "helm's scalars: octal numbers are decimal",
        f"{_MIGRATE}/helm_scalars.py",
        '"octal": 8,',
        '"octal": 10,',
        "A file mode is another one.",
        (_SCALARS,),
    ),
    Mutant(
        "helm's scalars: a float key is written as Python does",
        f"{_MIGRATE}/helm_scalars.py",
        "    if not -4 <= power < 6:\n",
        "    if not -4 <= power < 16:\n",
        "A key of a map is another one than helm's.",
        (_SCALARS,),
    ),
    Mutant(
        "helm's --set: a comma with a backslash ends the value",
        f"{_MIGRATE}/helm_values.py",
        '            if letter == "\\\\":\n',
        '            if letter == "|":\n',
        "Half of a value of Argo CD is lost.",
        (_SETTINGS, _WRAPPED),
    ),
    Mutant(
        "helm's files: a map replaces a map",
        f"{_MIGRATE}/helm_values.py",
        "            value = merged(under, value)\n",
        "            value = dict(value)\n",
        "A file over another one deletes its values.",
        (_SETTINGS,),
    ),
    Mutant(
        "values as YAML: a text that looks like a number has no quotes",
        f"{_MIGRATE}/values_text.py",
        """        style = None if isinstance(helm_scalars.read(value), str) else "'"\n""",
        """        style = "'" if helm_scalars.read(value) is True else None\n""",
        "helm reads a label's value 08 as a number, and the API server refuses it.",
        (_TEXT,),
    ),
    Mutant(
        "values as YAML: the characters of aliases are not counted",
        f"{_MIGRATE}/values_text.py",
        "        self._reader.count(*named.size)\n",
        "        self._reader.count(named.size[0], 0)\n",
        "A file of 1 MiB is written as one of many GiB.",
        (_TEXT,),
    ),
    Mutant(
        "values as YAML: each text has bounds of its own",
        f"{_MIGRATE}/values_text.py",
        "        self._values += values\n",
        "        self._values = values\n",
        "A file with many texts of values takes hours.",
        (_TEXT,),
    ),
)
