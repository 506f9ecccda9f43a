# SPDX-License-Identifier: Apache-2.0
import runpy
from pathlib import Path

REPOSITORY = Path(__file__).parents[4]


def files(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.suffix in (".py", ".pyi"))
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_the_generated_messages_are_what_the_proto_files_say(tmp_path: Path) -> None:
    script = runpy.run_path(str(REPOSITORY / "scripts" / "generate_protos.py"))
    script["generate"](tmp_path)
    assert files(tmp_path) == files(script["GENERATED"])
