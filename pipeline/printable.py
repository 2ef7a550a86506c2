"""Text from outside as it may reach a terminal: captions, names and paths can hold what moves its cursor, changes its
title or colours, or shows words in another order than they are in."""

import json
import re
from collections.abc import Callable
from typing import Any

_CONTROL = r"\x00-\x1f\x7f-\x9f"  # C0 with ESC and CR, DEL, C1 with its one-byte CSI
_ORDER = r"\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_SURROGATES = r"\ud800-\udfff"  # bytes of a path that are not UTF-8, which no terminal could be sent
UNSAFE = re.compile(f"[{_CONTROL}{_ORDER}{_SURROGATES}]")


def tidy(caption: str) -> str:
    """A caption whose punctuation stands apart from its words, as tokenisers leave it, as people write it."""
    return re.sub(r"(?<=\S) +([.,;:!?]|'s|n't)(?=\s|$)", r"\1", caption)


def counted(count: int, what: str) -> str:
    """`1 photo`, `1,200 photos`."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def is_unicode(text: str) -> bool:
    """Whether `text` has no lone surrogates, which stand for bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: object) -> str:
    """`text` on one line, with what a terminal would obey written as in Python: \\x1b, \\r, \\u202e."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def printable_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """`value` as JSON on one line, readable but for the same characters, which are escaped as JSON has it; `default` is
    json's."""
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False, default=default))
