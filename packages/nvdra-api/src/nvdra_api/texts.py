# SPDX-License-Identifier: Apache-2.0
"""Texts that contain what others have written: bounded, and valid Unicode.

Names of files, output of programs and messages of exceptions can hold surrogates, which UTF-8
cannot encode. An error that quotes them must still reach the kubelet, an Event, a trace and the
log.
"""


def encodable(text: str) -> str:
    r"""Return the text with each surrogate written as `\ud800`, so that it can be encoded."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def shortened(text: str, limit: int) -> str:
    """Return the text, or its first `limit` characters and `…`."""
    return text if len(text) <= limit else f"{text[:limit]}…"
