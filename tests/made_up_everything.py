"""A folder with one of everything: photographs, lists, texts, and what NAS, Windows and macOS leave behind."""

import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

TABLE = "file\tsentence\n1.jpg\ta dog\n2.JPG\ta cat\n3.jfif\ta cow\nnowhere.jpg\ta gap\nbroken.png\ta break\n"
SYSTEM = (
    "@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "#recycle/old.jpg", "$RECYCLE.BIN/S-1/gone.jpg", "__MACOSX/._1.jpg",
    "lost+found/x.jpg", "System Volume Information/x.jpg", ".@__thumb/1.jpg", "@Recycle/x.jpg", ".Trashes/501/x.jpg",
    ".AppleDouble/1.jpg", "sub/._4.jpg", "Thumbs.db", "sub/desktop.ini", ".hidden/x.jpg",
)  # fmt: skip


EXCLUDED = ["masks", "sub/*.pdf"]
FORMS = ("text-files", "table", "folder")


def jpeg(number: int) -> bytes:
    """Another photograph of noise for each number."""
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(256, size=(24, 32, 3), dtype=np.uint8)).save(data, "JPEG")
    return data.getvalue()


def everything() -> dict[str, bytes]:
    """Path -> content: photographs of odd suffixes, one that is broken, one named by nobody, texts, system folders."""
    files = {name: jpeg(number) for number, name in enumerate(("1.jpg", "2.JPG", "3.jfif", "sub/4.jpe"))}
    files |= {
        "broken.png": b"no image",
        "masks/1.png": jpeg(9),
        "notes.pdf": b"%PDF",
        "sub/notes.pdf": b"%PDF",
        "LIST.TSV": b"",
    }
    files |= {f"{name}.txt": b"\xef\xbb\xbfa dog\r\na hound" for name in ("1", "2", "sub/4", "nobody")}
    files |= {name: jpeg(100 + number) for number, name in enumerate(SYSTEM)}
    return files | {"LIST.TSV": TABLE.encode()}


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def summary_of(run: Path) -> dict:
    """After checking that each count is conserved, and that everything rejected or twice there has its reject."""
    summary = json.loads((run / "manifest/manifest.json").read_text())
    rejects = map(json.loads, (run / "manifest/rejects.jsonl").read_text().splitlines())
    rejected = Counter(reject["what"] for reject in rejects)
    for what, count in summary["counts"].items():
        fates = count["kept"] + count["rejected"] + count["duplicate"] + count.get("left_out", 0)
        assert count["given"] == fates, what
        assert rejected[what] == count["rejected"] + count["duplicate"], what
    assert sum(summary["left_out"].values()) == summary["counts"]["files"]["left_out"]
    return summary


def check_everything(run: Path, form: str) -> None:
    """What `ingest` has made of it by the format, with the patterns EXCLUDED."""
    summary = summary_of(run)
    left_out = Counter(summary["left_out"])
    assert summary["counts"]["files"]["given"] == len(everything())
    by_name = {reason.partition(" (")[0] for reason in left_out}
    assert {
        "@eaDir",
        "#recycle",
        "$RECYCLE.BIN",
        "__MACOSX",
        "lost+found",
        "Thumbs.db",
        "._*",
        ".AppleDouble",
    } < by_name
    assert left_out["collection.exclude masks"] == left_out["collection.exclude sub/*.pdf"] == 1
    unnamed = int(form == "table")  # sub/4.jpe
    assert left_out["photos that no list names"] == unnamed
    rejected = 1 + int(form == "table")  # broken.png, and the row nowhere.jpg
    images = {"given": 4 - unnamed + rejected, "kept": 4 - unnamed, "rejected": rejected, "duplicate": 0}
    assert summary["counts"]["images"] == images
