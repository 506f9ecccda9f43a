# SPDX-License-Identifier: Apache-2.0
"""What a pip user pastes from the README does what the README says."""

import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()
WRITE, BROKEN, FIND, _GPU = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_examples_run_and_print_what_their_comments_say(tmp_path: Path) -> None:
    said = []
    for example in (WRITE, BROKEN, FIND):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(example.replace("/tmp/cdi", str(tmp_path)), "README.md", "exec"), {})
        said.append(out.getvalue())
    assert said[0].startswith("---\ncdiVersion: 0.5.0\nkind: example.com/demo\n")
    assert said[1].splitlines()[0].startswith("kind: empty vendor")
    assert said[1].splitlines()[-1] == (
        'devices[0].containerEdits.env[0] (device "a"): "X" is not NAME=value'
    )
    assert said[2].splitlines()[0] == "['example.com/demo=null']"
    assert "'path': '/dev/my-null', 'type': 'c', 'major': 1, 'minor': 3" in said[2]
