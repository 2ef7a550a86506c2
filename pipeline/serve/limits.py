"""What a server allows its visitors."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """`top` results where a request names no number, at most `max_top`; `among` as in Searcher.analogy.

    Sentences have at most `max_sentence_chars` characters, uploads at most `max_upload_bytes` bytes that arrive within
    `upload_seconds`. Of more than `max_requests` requests at a time, half as many uploads, or `max_descriptions`
    photographs that are described or wait for it, the rest is refused.
    """

    top: int
    max_top: int
    among: int
    max_sentence_chars: int
    max_upload_bytes: int
    upload_seconds: float
    max_requests: int
    max_descriptions: int
