"""Two writers of one artefact: a reader finds one of them whole, or nothing; never the one's bytes as the other's."""

import subprocess
import sys
from pathlib import Path

from pipeline.errors import IntegrityError
from pipeline.storage.commit import publish, read_verified

WRITER = """
import sys
from pathlib import Path
from pipeline.storage.commit import publish
who = sys.argv[2]
for number in range(30):
    publish(Path(sys.argv[1]), who.encode() * 5000, kind="thing", rows=1, details={"who": who})
"""


def test_a_reader_never_sees_a_mixture(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), who]) for who in "ab"]
    seen, refused = set(), 0
    while any(writer.poll() is None for writer in writers):
        try:
            data, commit = read_verified(path, "thing")
        except IntegrityError:
            refused += 1
            continue
        if data == commit.details["who"].encode() * 5000:
            seen.add(commit.details["who"])
        else:
            # Replaced between the check and the reading: whole all the same, and the other's.
            assert data in (b"a" * 5000, b"b" * 5000)
    assert [writer.returncode for writer in writers] == [0, 0] and seen
    publish(path, b"c", kind="thing", rows=1, details={"who": "c"})
    assert read_verified(path, "thing")[0] == b"c"
    assert {item.name for item in tmp_path.iterdir()} == {"x.bin", "x.bin.json"}
