"""Takedowns: a collection as if some of its images had never been in it."""

from collections.abc import Iterable, Iterator

from pipeline.collections.records import ImageRecord, Record, Reject


def parse_takedown(text: str) -> frozenset[str]:
    """The names in a takedown list, one a line; empty lines and those that begin with # are left out."""
    lines = (line.strip() for line in text.splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))


def leave_out(records: Iterable[Record], names: frozenset[str]) -> Iterator[Record]:
    """`records` without the images of these `names` and all that belongs to them; no reject tells of them either.

    A name is what the collection calls the image, its path relative to the data root, or its name inside a tar shard.
    """
    gone = set(names)
    for record in records:
        if isinstance(record, Reject):
            yield record
            continue
        if isinstance(record, ImageRecord) and gone & {record.path, record.member, record.key}:
            gone.add(record.key)
        if record.key not in gone:
            yield record
