# SPDX-License-Identifier: Apache-2.0
"""Text that a terminal shows as it is, also where others wrote parts of it. Standard library only.

A tenant's text in an error can hold sequences that rename a window, move the cursor or reverse what
follows. Every text that a command, a page or a log writes passes here, at the place that writes it.
"""

import json


def line(text: str) -> str:
    r"""The text in one line: what cannot be printed is written as in JSON, such as `\u001b`.

    That is what Unicode calls control characters (C0 and C1), formats (bidirectional ones, too),
    line and paragraph separators, surrogates, and what it has no character for. A JSON document in
    one line stays the same document.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def lines(text: str) -> str:
    """The same for each line of a text whose ends of lines are our own."""
    return "\n".join(map(line, text.split("\n")))
