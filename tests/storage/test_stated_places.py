"""What names of the layout say, and what is refused under another's."""

from pathlib import Path

import pytest
from pipeline.storage.places import claims, misplaced, require_output, require_place

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.commit import open_commit, publish, publish_record

CLAIMS = {
    "features/resnet50/shard-00012.h5": {"encoder": "resnet50", "shard": 12},
    "regions/resnet50/shard-00000.h5": {"encoder": "resnet50", "shard": 0},
    "encoders/resnet50/model.safetensors": {"encoder": "resnet50"},
    "models/ncca-csls/model.safetensors": {"model": "ncca-csls"},
    "embeddings/sae/shard-123456.h5": {"model": "sae", "shard": 123456},
    "generators/mrnn/model.safetensors": {"generator": "mrnn"},
    "generators/mine/model.safetensors": {},
    "text/tfidf/shard-00003.h5": {"encoder": "tfidf", "shard": 3},
    "text/tokens/shard-00003.h5": {"shard": 3},
    "text/encoders/tfidf/model.safetensors": {"encoder": "tfidf"},
    "text/parses/shard-00003.conllu": {"shard": 3},
    "text/documents/title/tfidf/shard-00001.h5": {"documents": "title", "encoder": "tfidf", "shard": 1},
    "text/simulated/mild.parquet": {"documents": "mild"},
    "moments/target/shard-00001.h5": {"pairs": "target", "shard": 1},
    "study/moments/auxiliary/tags/shard-00001.h5": {"pairs": "auxiliary", "documents": "tags", "shard": 1},
    "evaluation/ncca.test.all-sentences.json": {"model": "ncca", "split": "test", "protocol": "all-sentences"},
    "evaluation/v1.5.dev.first-sentence.json": {"model": "v1.5", "split": "dev", "protocol": "first-sentence"},
    "evaluation/phrases/hmlstm.test.json": {"model": "hmlstm", "split": "test"},
    "evaluation/phrases/v1.5.dev.boxes.json": {"model": "v1.5", "split": "dev"},
    "evaluation/descriptions/mrnn.test.json": {"generator": "mrnn", "split": "test", "of": "images"},
    "descriptions/mrnn.test.boxes/descriptions.json": {"generator": "mrnn", "split": "test", "of": "boxes"},
    "alignments/dvsa/dev.jsonl": {"model": "dvsa", "split": "dev"},
    "alignments/dvsa/dev.magnitudes.json": {"model": "dvsa", "split": "dev"},
    "phrases/hmlstm/test/phrases.parquet": {"model": "hmlstm", "split": "test"},
    "phrases/hmlstm/test.plane.png": {"model": "hmlstm", "split": "test"},
    "index/ncca/card.json": {},
    "elsewhere/x.h5": {},
    "evaluation/summary.json": {},
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_name_says_what_it_is_of(name: str, tmp_path: Path) -> None:
    assert claims(tmp_path / name) == CLAIMS[name]
    assert claims(tmp_path / "x" / ".." / name) == CLAIMS[name]


def test_a_name_of_a_relative_path_is_that_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models/ncca").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "models/ncca")
    assert claims(Path("model.safetensors")) == {"model": "ncca"}


def test_what_a_record_does_not_say_is_not_contradicted_but_a_shard_must(tmp_path: Path) -> None:
    assert misplaced(tmp_path / "models/ncca/model.safetensors", {}) is None
    assert misplaced(tmp_path / "models/ncca/model.safetensors", {"model": "ncca"}) is None
    assert "is of model cca, not of ncca" in misplaced(tmp_path / "models/ncca/model.safetensors", {"model": "cca"})
    assert "is of encoder b, not of a" in misplaced(
        tmp_path / "features/a/shard-00000.h5", {"shard": 0, "encoder": {"name": "b"}}
    )
    assert "does not say which shard it is" in misplaced(tmp_path / "x/shard-00000.h5", {})


def test_a_shard_says_by_itself_which_it_is(tmp_path: Path) -> None:
    for number in (0, 1):
        publish(tmp_path / f"shard-{number:05d}.h5", b"x", kind="k", rows=1, fingerprint="f")
    assert open_commit(tmp_path / "shard-00001.h5", "k").details == {"shard": 1}
    (tmp_path / "shard-00000.h5.json").replace(tmp_path / "shard-00001.h5.json")
    with pytest.raises(IntegrityError, match=r"shard-00001\.h5 is of shard 0, not of 1: it was moved or copied there"):
        verify(tmp_path / "shard-00001.h5", "k")


def test_nothing_is_written_under_another_s_name(tmp_path: Path) -> None:
    path = tmp_path / "models/ncca/model.safetensors"
    with pytest.raises(UsageError, match="is the place of model ncca, and cca was asked for; correct its name"):
        publish(path, b"x", kind="model", rows=1, fingerprint="f", details={"model": "cca"})
    with pytest.raises(UsageError, match="the place of split dev, and test was asked for"):
        publish_record(tmp_path / "evaluation/ncca.dev.all-sentences.json", {"model": "ncca", "split": "test"})
    assert not list(tmp_path.iterdir())
    require_output(tmp_path / "anywhere/model.safetensors", {"model": "cca"})
    require_place(tmp_path / "anywhere/model.safetensors", {"model": "cca"})
