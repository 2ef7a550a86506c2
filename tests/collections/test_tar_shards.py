"""Tests of tar shards, valid and damaged."""

import gzip
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from test_formats import write_tar

from pipeline.collections.formats import lists


def test_bad_members_of_shards(tmp_path: Path, photograph, gather) -> None:
    link = tarfile.TarInfo("link.jpg")
    link.type = tarfile.SYMTYPE
    link.linkname = "/etc/passwd"
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
    assert sorted(reasons) == [("0.tar", "duplicate"), ("0.tar", "not"), ("0.tar", "outside"), ("0.tar", "outside")]
    assert [(file, reason.partition(": the")[0]) for file, _, reason in result.rejected("sentences")] == [
        ("0.tar/5.txt", "not UTF-8"),
        ("0.tar/6.txt", "unknown image: '0.tar/6' is not a photo of the collection"),
        ("0.tar/../1.txt", "image rejected: its photo cannot be used"),
    ]
    assert [reason.partition(":")[0] for *_, reason in result.rejected("documents")] == ["not JSON"]
    assert result.tables["sentences"]["text"].to_pylist() == ["A dog .", "A cat .", "Last ."]
    result.check_counts()


DAMAGES: dict[str, tuple[Callable[[bytes, tarfile.TarInfo], bytes], str, int]] = {
    "cut in a member": (lambda data, last: data[: last.offset_data + 100], "truncated", 2),
    "cut between members": (lambda data, last: data[: last.offset], "damaged", 2),
    "bad header": (lambda data, last: data[: last.offset] + b"\xff" + data[last.offset + 1 :], "damaged", 2),
    "compressed": (lambda data, _: gzip.compress(data), "not", 0),
    "empty": (lambda *_: b"", "not", 0),
}
"""Kind of damage -> three values: a function that returns the damaged bytes of a shard from its bytes and the tar
header of its last image, the first word of the expected reason, and the number of images that are still read."""


def test_long_json_is_rejected_for_its_length(tmp_path: Path, photograph, gather, monkeypatch) -> None:
    monkeypatch.setattr(lists, "MAX_TEXT_BYTES", 20)
    write_tar(tmp_path / "0.tar", [("0.jpg", photograph(0)), ("0.json", b'{"caption": "A long caption ."}')])
    result = gather(tmp_path, "webdataset")
    reason = "too long: the text has 31 bytes, but only 20 are allowed. Shorten it"
    assert result.rejected("documents") == [("0.tar/0.json", None, reason)]


def test_images_before_the_damage_and_other_shards_are_read(tmp_path: Path, photograph, gather) -> None:
    for number, (name, (damage, _, _)) in enumerate(DAMAGES.items()):
        path = tmp_path / f"{name}.tar"
        names = [f"{3 * number + n}.jpg" for n in range(3)]
        images = [(name, photograph(3 * number + n)) for n, name in enumerate(names)]
        write_tar(path, [part for image in images for part in (image, (image[0].replace("jpg", "txt"), b"A dog ."))])
        with tarfile.open(path) as tar:
            last = tar.getmember(names[-1])
        path.write_bytes(damage(path.read_bytes(), last))
    write_tar(tmp_path / "whole.tar", [("99.jpg", photograph(99)), ("99.txt", b"A cat .")])
    result = gather(tmp_path, "webdataset")
    reasons = {file: reason.partition(":")[0].partition(" ")[0] for file, _, reason in result.rejected("images")}
    assert reasons == {f"{name}.tar": reason for name, (_, reason, _) in DAMAGES.items()}
    kept = Counter(Path(path).stem for path in result.tables["images"]["path"].to_pylist())
    assert kept == Counter({name: count for name, (_, _, count) in DAMAGES.items() if count} | {"whole": 1})
    assert result.tables["sentences"]["text"].to_pylist()[-1] == "A cat ."
    result.check_counts()


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, content: bytes = b"") -> bytes:
    """Return a tar member whose header declares `size` bytes, or the length of `content` if `size` is 0.

    The `content` follows the header, whatever its length is. Negative sizes and sizes of more than eleven octal digits
    have the form of GNU tar.
    """
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


def test_a_hostile_shard_costs_itself(tmp_path: Path, photograph, gather) -> None:
    for name, data in HOSTILE.items():
        (tmp_path / f"{name}.tar").write_bytes(data + bytes(1024))
    write_tar(tmp_path / "1.tar", [("9.jpg", photograph(9)), ("9.txt", b"A cat .")])
    result = gather(tmp_path, "webdataset")
    rejected = result.rejected("images")
    assert sorted((file, row) for file, row, _ in rejected) == sorted((f"{name}.tar", None) for name in HOSTILE)
    beginnings = ("damaged: ", "truncated: ", "not an uncompressed")
    assert all(reason.startswith(beginnings) for *_, reason in rejected)
    assert result.tables["sentences"]["text"].to_pylist() == ["A cat ."]
    result.check_counts()
