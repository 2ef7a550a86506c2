"""Tar shards, sound and damaged."""

import tarfile
from pathlib import Path

import pytest
from test_formats import write_tar


def test_bad_members_of_shards(tmp_path: Path, photograph, gather) -> None:
    link = tarfile.TarInfo("link.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    write_tar(
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
    reasons = [(file, reason.partition(":")[0].partition(" ")[0]) for file, _, reason in result.rejected("images")]
    assert sorted(reasons) == [
        ("0.tar", "duplicate"),
        ("0.tar", "not"),
        ("0.tar", "outside"),
        ("0.tar", "outside"),
    ]
    assert [(file, reason.partition(" but")[0]) for file, _, reason in result.rejected("sentences")] == [
        ("0.tar/5.txt", "not UTF-8"),
        ("0.tar/6.txt", "unknown image: '0.tar/6'"),
        ("0.tar/../1.txt", "image rejected"),
    ]
    assert [reason.partition(":")[0] for *_, reason in result.rejected("documents")] == ["not JSON"]
    assert result.tables["sentences"]["text"].to_pylist() == ["A dog .", "A cat .", "Last ."]
    result.check_counts()


@pytest.mark.parametrize("damage", ["cut in a member", "cut between members", "bad header", "compressed", "empty"])
def test_damaged_shards_leave_the_others_alone(damage: str, tmp_path: Path, photograph, gather) -> None:
    members = [(f"{n}.{kind}", data) for n in range(3) for kind, data in (("jpg", photograph(n)), ("txt", b"A dog ."))]
    write_tar(tmp_path / "0.tar", members)
    write_tar(tmp_path / "1.tar", [("9.jpg", photograph(9)), ("9.txt", b"A cat .")])
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
    ((file, _, reason),) = result.rejected("images")
    assert file == "0.tar" and reason.startswith(
        {"cut in a member": "truncated", "compressed": "not", "empty": "not"}.get(damage, "damaged")
    )
    assert result.tables["sentences"]["text"].to_pylist()[-1] == "A cat ."
    assert result.counts["images"]["kept"] == (1 if damage in ("compressed", "empty") else 3)
    result.check_counts()


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, content: bytes = b"") -> bytes:
    """A header that claims `size`, and content of another one; sizes beyond eight octal digits, and below zero, as GNU
    tar writes them."""
    info = tarfile.TarInfo(name)
    info.type = kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = tarfile.itn(size or len(content), 12, tarfile.GNU_FORMAT)
    block[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(block))[0]
    return bytes(block) + content.ljust(-(-len(content) // 512) * 512, b"\0")


def pax(*records: bytes) -> bytes:
    return header("pax", tarfile.XHDTYPE, content=b"".join(records))


HOSTILE = {
    "a chain of long names": header("@", tarfile.GNUTYPE_LONGNAME, content=b"x.jpg\0") * 3000,
    "a chain of pax headers": pax(b"14 path=x.jpg\n") * 3000,
    "a name of 2 to the 50 bytes": header("@", tarfile.GNUTYPE_LONGNAME, 1 << 50),
    "a pax header of 2 to the 50 bytes": header("@", tarfile.XHDTYPE, 1 << 50),
    "a member of 2 to the 50 bytes": header("x.jpg", size=1 << 50),
    "a member of less than nothing": header("x.jpg", size=-1024),
    "a name of less than nothing": header("@", tarfile.GNUTYPE_LONGNAME, -512),
    "a pax size beyond all measure": pax(b"31 size=99999999999999999999999\n") + header("x.jpg"),
    "a pax record of no length": pax(b"0 path=x.jpg\n") + header("x.jpg"),
    "a name before the end": header("@", tarfile.GNUTYPE_LONGNAME, content=b"x.jpg\0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_shard_costs_itself(name: str, tmp_path: Path, photograph, gather) -> None:
    (tmp_path / "0.tar").write_bytes(HOSTILE[name] + bytes(1024))
    write_tar(tmp_path / "1.tar", [("9.jpg", photograph(9)), ("9.txt", b"A cat .")])
    result = gather(tmp_path, "webdataset")
    ((file, row, reason),) = result.rejected("images")
    assert (file, row) == ("0.tar", None) and reason.startswith(("damaged: ", "truncated: ", "not an uncompressed"))
    assert result.tables["sentences"]["text"].to_pylist() == ["A cat ."]
    result.check_counts()
