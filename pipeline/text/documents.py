"""Documents: the title, tags and description of a weakly annotated image, as one text."""

from collections.abc import Iterable, Mapping, Sequence


def join_fields(documents: Iterable[Mapping[str, str | None]], fields: Sequence[str]) -> list[str]:
    """Of each document the given `fields` joined, missing ones left out; an empty text where all are missing."""
    return [" . ".join(filter(None, (document[field] for field in fields))) for document in documents]
