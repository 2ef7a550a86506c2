"""Tar shards, sound and damaged."""

import io
import tarfile
from pathlib import Path

import pytest
from outcomes import check_counts, found


def shard(path: Path, members: list[tuple[str | tarfile.TarInfo, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            header = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))


def test_bad_members_of_shards(tmp_path: Path, photograph, gather) -> None:
    link = tarfile.TarInfo("link.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    shard(
        tmp_path / "0.tar",
        [
            ("0.jpg", photograph(0)),
            ("0.txt", b"A dog ."),
            ("../1.jpg", photograph(1)),
            ("../1.txt", b"A dog ."),
            ("/2.jpg", photograph(2)),
            (link, b""),
            ("4.jpg", photograph(4)),
            ("4.jpg", photograph(5)),
            ("4.txt", b"A cat ."),
            ("5.jpg", photograph(5)),
            ("5.json", b"{"),
            ("5.txt", b"\xff"),
            ("6.txt", b"No image ."),
            ("7.jpg", photograph(7)),
            ("7.txt", b"\n\nLast .\n"),
        ],
    )
    result = gather(tmp_path, "webdataset")
    reasons = [(file, reason.partition(":")[0].partition(" ")[0]) for file, _, reason in found(result, "images")]
    assert sorted(reasons) == [
        ("0.tar", "duplicate"),
        ("0.tar", "not"),
        ("0.tar", "outside"),
        ("0.tar", "outside"),
        ("0.tar/5.jpg", "no"),
    ]
    assert [(file, reason) for file, _, reason in found(result, "sentences")] == [
        ("0.tar/5.txt", "not UTF-8"),
        ("0.tar/6.txt", "unknown image: '0.tar/6'"),
        ("0.tar/../1.txt", "image rejected"),
    ]
    assert [reason.partition(":")[0] for *_, reason in found(result, "documents")] == ["not JSON"]
    assert result.tables["sentences"]["text"].to_pylist() == ["A dog .", "A cat .", "Last ."]
    check_counts(result)


@pytest.mark.parametrize("damage", ["cut in a member", "cut between members", "bad header", "compressed", "empty"])
def test_damaged_shards_leave_the_others_alone(damage: str, tmp_path: Path, photograph, gather) -> None:
    members = [(f"{n}.{kind}", data) for n in range(3) for kind, data in (("jpg", photograph(n)), ("txt", b"A dog ."))]
    shard(tmp_path / "0.tar", members)
    shard(tmp_path / "1.tar", [("9.jpg", photograph(9)), ("9.txt", b"A cat .")])
    data = bytearray((tmp_path / "0.tar").read_bytes())
    with tarfile.open(tmp_path / "0.tar") as tar:
        last = tar.getmember("2.jpg")
    if damage == "cut in a member":
        del data[last.offset_data + 100 :]
    elif damage == "cut between members":
        del data[last.offset :]
    elif damage == "bad header":
        data[last.offset + 3] ^= 1
    elif damage == "compressed":
        import gzip

        data = gzip.compress(data)
    else:
        data = b""
    (tmp_path / "0.tar").write_bytes(data)
    result = gather(tmp_path, "webdataset")
    ((file, _, reason),) = found(result, "images")
    assert file == "0.tar" and reason.startswith(
        {"cut in a member": "truncated", "compressed": "not", "empty": "not"}.get(damage, "damaged")
    )
    assert result.tables["sentences"]["text"].to_pylist()[-1] == "A cat ."
    assert result.counts["images"]["kept"] == (1 if damage in ("compressed", "empty") else 3)
    check_counts(result)
