"""Sentences of which a text encoder knows no word are counted from the shards to the model."""

from pathlib import Path

import pytest
from made_up import make_stage
from made_up_training import add_moments, fit, make_trainable
from scipy import sparse

from pipeline.errors import IntegrityError
from pipeline.storage.commit import Provenance, open_commit
from pipeline.storage.json_files import read_json
from pipeline.storage.shards import VECTORS
from pipeline.storage.text_shards import VectorShard, write_vectors

GRID = {"dimensions": [4], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1]}


def test_sentences_without_a_known_word_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_trainable(tmp_path)
    add_moments(run, {"fit": GRID})
    path = run / "text/tfidf/shard-00001.h5"
    shard, commit = VectorShard(path), open_commit(path, VECTORS)
    matrix = shard.matrix.toarray()
    assert commit.details["empty"] == 0
    matrix[[2, 5]] = 0
    for vectors in (sparse.csr_array(matrix), matrix):
        made_by = Provenance(run, commit.made_by["stage"], 0, {}, commit.inputs)
        write_vectors(path, vectors, shard.sentence_id, shard.image_id, provenance=made_by, encoder="tfidf")
        assert open_commit(path, VECTORS).details["empty"] == 2
    with pytest.raises(IntegrityError, match="mixed"):
        fit(run, "ncca")
    for part in path.parent.glob("part-*.json"):  # which vouches for the shard that was there
        part.unlink()
    make_stage("accumulate", run, "target")
    fit(run, "ncca")
    log = read_json(run / "models/ncca/model.json")["details"]["training_log"]
    assert log["empty_sentences"] == {"tfidf": 2} and "2 of " in caplog.text
