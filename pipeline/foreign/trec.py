"""Reads the two files of a test collection of TREC: the queries (topics), and the judgements of photos (qrels)."""

from pathlib import Path

from pipeline.errors import InputError
from pipeline.foreign.files import read_lines

Qrels = dict[str, dict[str, int]]
"""Query id -> name of a judged photo -> grade. A photo is relevant if its grade is at least 1."""
MAX_GRADE = 1000
"""Largest absolute value of a grade. TREC's program needs memory for each grade up to the largest, and may crash."""


def read_topics(path: Path) -> dict[str, str]:
    """Read lines of the form QUERY-ID TAB TEXT. Return the text of each query by its id. Blank lines are ignored.

    Raises InputError, with the number of the line, if a line has no id or no text, or the id of an earlier line. Also
    raises InputError if there is no query.
    """
    topics: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        query, _, text = (part.strip() for part in line.partition("\t"))
        if not query or not text:
            raise InputError(
                f"{path}, line {number}: the id or the text of the query is missing. Write the id, a tab, and the text."
            )
        if query in topics:
            raise InputError(
                f"{path}, line {number}: an earlier line has the id {query!r} too. Give each query an id of its own."
            )
        topics[query] = text
    if not topics:
        raise InputError(f"{path} has no query. Write one query per line: its id, a tab, and its text.")
    return topics


def read_qrels(path: Path) -> Qrels:
    """Read lines of the form QUERY-ID ITERATION PHOTO GRADE. The iteration is not used, and blank lines are ignored.

    Spaces or tabs separate the columns, and PHOTO may contain spaces. Raises InputError, with the line, if a column is
    missing, if the grade is not a whole number from -MAX_GRADE to MAX_GRADE, or if an earlier line has another grade
    for the same query and photo. Also raises InputError if there is no judgement.
    """
    qrels: Qrels = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        query, _, rest = [*line.split(None, 2), "", "", ""][:3]
        photo, grade = [*rest.rsplit(None, 1), "", ""][:2]
        try:
            value = int(grade)
        except ValueError:
            value = None
        if value is None or abs(value) > MAX_GRADE:
            raise InputError(
                f"{path}, line {number} is not a judgement. Write the id of a query, a 0, the name of a photo, and a"
                f" grade that is a whole number from {-MAX_GRADE} to {MAX_GRADE}, with spaces or tabs between them."
            )
        if qrels.setdefault(query, {}).setdefault(photo, value) != value:
            raise InputError(
                f"{path}, line {number}: an earlier line has another grade for the photo {photo!r} and the query"
                f" {query!r}. Keep one of these lines."
            )
    if not qrels:
        raise InputError(f"{path} has no judgement. Write lines such as: q1 0 photos/dog.jpg 2")
    return qrels
