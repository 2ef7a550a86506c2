"""What became of a collection, in the shape in which tests ask."""

from collections import Counter
from pathlib import Path

from pipeline.collections.collection import Collection


def append(path: Path, data: str | bytes) -> None:
    with open(path, "ab") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def found(result: Collection, what: str) -> list[tuple[str, int | None, str]]:
    return [(reject.file, reject.row, reject.reason) for reject in result.rejects if reject.what == what]


def check_counts(result: Collection) -> None:
    fates = Counter((reject.what, reject.reason.startswith("duplicate")) for reject in result.rejects)
    for what, count in result.counts.items():
        assert count["given"] == count["kept"] + count["rejected"] + count["duplicate"], what
        assert count["kept"] == result.tables[what].num_rows
        assert (count["rejected"], count["duplicate"]) == (fates[what, False], fates[what, True])
