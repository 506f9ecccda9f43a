# SPDX-License-Identifier: Apache-2.0
"""`nvdra-cdi monitor`: print the changes of devices and of errors in the spec directories."""

import argparse
import json
import sys
from threading import Event

from nvdra_cdi.cache import Cache
from nvdra_cdi.cli import device_changes
from nvdra_cdi.cli.device_changes import Change, Seen
from nvdra_cdi.cli.output import CommandOutput
from nvdra_cdi.errors import one_line

_WIDTH = 8  # characters of the longest word of a change


def run(arguments: argparse.Namespace) -> CommandOutput:
    """Print what there is, and then each change, until the process is interrupted.

    A cache sees a directory that appears later, and needs no watcher, so this asks it again and
    again: a `stat` call per file.
    """
    cache = Cache(arguments.spec_dir)
    seen = Seen({}, {})
    never = Event()
    while True:
        now = device_changes.look(cache)
        for change in device_changes.between(seen, now):
            line = _as_json(change) if arguments.output == "json" else _as_text(change)
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        seen = now
        never.wait(arguments.interval)


def _as_text(change: Change) -> str:
    facts = (change.name, change.path, change.text)
    return one_line("  ".join((f"{change.what:{_WIDTH}}", *filter(None, facts))))


def _as_json(change: Change) -> str:
    return json.dumps({key: value for key, value in vars(change).items() if value})
