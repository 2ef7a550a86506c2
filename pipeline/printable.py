"""Functions that make text from outside, such as captions and file names, safe to print on a terminal.

Captions, names and paths can contain characters that move the cursor, change the title or the colours of the terminal,
or show words in another order.
"""

import json
import re
from collections.abc import Callable

_CONTROL = r"\x00-\x1f\x7f-\x9f"  # control characters C0 (with ESC and CR), DEL, and C1 (with CSI)
_ORDER = r"\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_SURROGATES = r"\ud800-\udfff"  # bytes of a path that are not UTF-8. A terminal cannot show these bytes.
UNSAFE = re.compile(f"[{_CONTROL}{_ORDER}{_SURROGATES}]")
"""Pattern of a character that must not reach a terminal: a control character, a character that changes the order of the
text or begins a line, or a lone surrogate."""


def tidy(caption: str) -> str:
    """Return a tokenised caption without the spaces before punctuation, 's and n't: `a dog 's toy .` becomes
    `a dog's toy.`"""
    return re.sub(r"(?<=\S) +([.,;:!?]|'s|n't)(?=\s|$)", r"\1", caption)


def counted(count: int, what: str) -> str:
    """Return a count with the noun `what`, such as `1 photo` or `1,200 photos`. An s is added to the noun unless the
    count is 1."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def is_unicode(text: str) -> bool:
    """Return whether `text` has no lone surrogates, which stand for bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: object) -> str:
    """Return `str(text)` on one line. Characters that match UNSAFE, such as line ends, are replaced by Python's
    escapes, such as \\x1b, \\n and \\u202e."""
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


def printable_json(value: object, default: Callable[[object], object] | None = None) -> str:
    """Return `value` as JSON on one line. Characters that match UNSAFE are replaced by JSON's escapes, such as \\u001b.

    `default` is passed to json.dumps, which calls it to convert objects that JSON cannot express. If it is None, an
    object of this kind raises TypeError.
    """
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False, default=default))
