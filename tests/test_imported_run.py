"""The same vectors, of images or of sentences, made by the run and imported, give the same evaluation."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from made_up import run_command
from workflow import NETWORK, planned, snakemake

import jointspace
from pipeline.errors import UsageError
from pipeline.run import Run
from pipeline.storage.verify import examine

pytestmark = pytest.mark.slow
EYES = {"name": "eyes", **NETWORK}
CONFIG = {
    "name": "extracted", "data_root": "data", "models": ["ncca"], "encoders": [EYES], "shard_size": 20,
    "demo": {"train": 40, "dev": 10, "test": 10, "weak": 0},
    "fit": {"dimensions": [8], "image_ridge": [1], "text_ridge": [1], "eigenvalue_power": [1]},
    "evaluate": {"bootstrap": 5, "protocols": ["all-sentences"]},
}  # fmt: skip


def run_all(folder: Path, **more: object) -> tuple[Path, dict[str, float]]:
    """The folder of the run, and the recalls and mean ranks of its summary."""
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**CONFIG, **more}))
    snakemake(folder, "all", "--configfile", "tiny.yaml")
    assert planned(folder) == set()
    run = folder / "results" / str(more.get("name", CONFIG["name"]))
    found = {
        f"{one['split']} {direction} {name}": one[direction][name]
        for one in json.loads((run / "evaluation/summary.json").read_text())
        for direction in ("image_to_sentence", "sentence_to_image")
        for name in ("recall@1", "recall@5", "recall@10", "mean_rank")
    }
    return run, found


def test_imported_features_are_evaluated_like_those_that_were_extracted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    extracted, expected = run_all(tmp_path)
    run = Run(extracted)
    features = np.concatenate([run.features.open("eyes", n)["features"][:] for n in range(run.manifest.n_shards)])
    paths = run.manifest.images["path"].to_pylist()
    order = np.random.default_rng(0).permutation(len(paths))
    names = [paths[i] for i in order]
    np.save(tmp_path / "f.npy", features[order])
    (tmp_path / "f.txt").write_text("".join(f"{name}\n" for name in names))
    vectors = pa.array(list(features[order].astype(np.float32)))
    pq.write_table(pa.table({"vector": vectors, "file": names}), tmp_path / "f.parquet")
    photograph = tmp_path / "data" / paths[0]
    for name, made_by in (("f.npy", "eyes"), ("f.parquet", None)):
        given = {"name": "given", "kind": "imported", "path": str(tmp_path / name), "made_by": made_by}
        roots = {} if made_by else {"image_view": {"normalise": ["sqrt", "l2"]}}  # what is taken of eyes by default
        imported, found = run_all(tmp_path, name=f"of-{name}", encoders=[given], query_encoders=[EYES], **roots)
        assert found == pytest.approx(expected) and len(found) == 16
        assert not (imported / "features/eyes").exists()
        ask = ("search", "--index", imported / "index/ncca", "--top", 1, "--image", photograph)
        if made_by:
            assert run_command(*ask)
        else:
            assert not (imported / "encoders").exists()
            with pytest.raises(UsageError, match="has no encoder given, whose features were imported"):
                run_command(*ask)


def test_imported_sentences_are_evaluated_like_those_that_were_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("dog", "cat", "bus", "boat", "red", "blue", "beach", "forest", "girl", "boy")
    vectors = np.random.default_rng(0).standard_normal((len(words), 6))
    lines = (f"{word} {' '.join(f'{one:.4f}' for one in row)}\n" for word, row in zip(words, vectors, strict=True))
    (tmp_path / "glove.txt").write_text("".join(lines))
    glove = {"name": "words", "kind": "averaged", "averaged": {"source": "file", "file": "glove.txt"}}
    known = {"weights_root": str(tmp_path)}
    encoded, expected = run_all(tmp_path, **known, text_encoders=[glove])
    run = Run(encoded)
    texts = run.texts({"words": run.layout.sentences("words")})
    rows = np.concatenate([texts.open(n)["words"].matrix[:] for n in range(run.manifest.n_shards)])
    images, owners = run.manifest.images["path"].to_pylist(), run.manifest.sentence_images
    order = np.random.default_rng(1).permutation(len(owners))
    numbers = np.arange(len(owners)) - np.searchsorted(owners, owners)
    np.save(tmp_path / "s.npy", rows[order])
    (tmp_path / "s.txt").write_text("".join(f"{images[owners[i]]}#{numbers[i]}\n" for i in order))
    given = {"path": str(tmp_path / "s.npy"), "made_by": "words"}
    theirs = {"name": "theirs", "kind": "imported", "imported": given}
    imported, found = run_all(tmp_path, **known, name="given", text_encoders=[theirs], query_text_encoders=[glove])
    assert found == pytest.approx(expected) and len(found) == 16
    assert not (imported / "text/words").exists() and not examine(imported).faults
    assert run_command("search", "--index", imported / "index/ncca", "a red dog")

    captions, random = run.manifest.sentences["text"].to_pylist(), np.random.default_rng(2)
    known = {word: random.standard_normal(24) for word in sorted({one for text in captions for one in text.split()})}
    rows = np.array([sum(map(known.get, text.split())) for text in captions], np.float32)
    sums = np.zeros((len(images), rows.shape[1]), np.float32)
    np.add.at(sums, owners, rows)
    np.save(tmp_path / "i.npy", sums)
    (tmp_path / "i.txt").write_text("".join(f"{name}\n" for name in images))
    pq.write_table(pa.table({"caption": captions, "vector": list(rows)}), tmp_path / "s.parquet")
    pairs = {
        "models": ["zero-shot", "ncca"],
        "image_view": {"normalise": ["l2"]},
        "encoders": [{"name": "pictures", "kind": "imported", "path": str(tmp_path / "i.npy")}],
        "text_encoders": [{"name": "theirs", "kind": "imported", "imported": {"path": str(tmp_path / "s.parquet")}}],
    }
    both, found = run_all(tmp_path, name="both", **pairs)
    summary = json.loads((both / "evaluation/summary.json").read_text())
    recalls = {one["model"]: one["sentence_to_image"]["recall@5"] for one in summary if one["split"] == "test"}
    assert min(recalls.values()) > 60 and not examine(both).faults  # by chance 50
    for name in ("zero-shot", "ncca"):
        with pytest.raises(UsageError, match="has no text encoder theirs, whose vectors were imported, so it"):
            run_command("search", "--index", both / "index" / name, "a red dog")
    index = jointspace.load(both / "index/zero-shot")
    assert len(index.search(vector=rows[0], k=3)) == 3
