# SPDX-License-Identifier: Apache-2.0
"""Names the licence in the first lines of each source file: a line that tools read.

    python -m scripts.spdx_lines            names the files that lack it
    python -m scripts.spdx_lines --write    writes it into them

Files that are made by a program or come from elsewhere are left as they are, and those that users
copy or that helm shows: manifests of quickstarts and values of charts.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# In two parts, so that this line is not taken for one of them.
WORDS = "SPDX-License-" + "Identifier: Apache-2.0"
FIRST_LINES = 5
HASH, SLASHES, BLOCK, TEMPLATE, DASHES = (
    "# {}",
    "// {}",
    "/* {} */",
    "{{{{- /* {} */ -}}}}",
    "-- {}",
)
FORMS = (
    (re.compile(r"charts/.*\.tpl"), TEMPLATE),
    (re.compile(r"charts/.*/templates/.*\.yaml"), TEMPLATE),
    (
        re.compile(
            r".*\.(py|sh|hcl)|\.github/workflows/.*\.yml|(.*/)?(Makefile|(.*\.)?Dockerfile)"
        ),
        HASH,
    ),
    (re.compile(r".*\.(c|h|go)"), SLASHES),
    (re.compile(r".*\.css"), BLOCK),
    (re.compile(r".*\.lua"), DASHES),
)
"""Which files have the line, by their whole path, and how it is written there."""
LEFT_OUT = re.compile(r"(.*/)?_generated/.*|\.ci/.*")


def form(path: str) -> str | None:
    """How the line is written in a file; None if the file has none."""
    if LEFT_OUT.fullmatch(path):
        return None
    return next((each for pattern, each in FORMS if pattern.fullmatch(path)), None)


def has_line(text: str) -> bool:
    """Whether the line is among the first ones of a file; an empty file needs none."""
    return not text.strip() or any(WORDS in line for line in text.splitlines()[:FIRST_LINES])


def with_line(text: str, written: str) -> str:
    """Return a file with the line, after the one that names its program."""
    line = f"{written.format(WORDS)}\n"
    first, separator, rest = text.partition("\n")
    if first.startswith("#!"):
        return f"{first}{separator}{line}{rest}"
    # Go takes a comment right above `package` for its documentation, and a build constraint stands
    # alone.
    return f"{line}\n{text}" if written == SLASHES else f"{line}{text}"


def lacking(repository: Path) -> Iterator[tuple[Path, str]]:
    """The files without the line, each with how it is written there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in sorted(filter(None, listed.split("\0"))):
        written, path = form(name), repository / name
        if written is not None and path.is_file() and not has_line(path.read_text()):
            yield path, written


def main() -> int:
    """Run the command; return its exit status: 1 if a file lacks the line."""
    parser = argparse.ArgumentParser(description="Name the licence in each source file.")
    parser.add_argument("--write", action="store_true", help="write the line where it is missing")
    arguments = parser.parse_args()
    found = list(lacking(REPOSITORY))
    for path, written in found:
        if arguments.write:
            path.write_text(with_line(path.read_text(), written))
        else:
            print(path.relative_to(REPOSITORY))
    if arguments.write:
        print(f"{len(found)} files")
    return 1 if found and not arguments.write else 0


if __name__ == "__main__":
    sys.exit(main())
