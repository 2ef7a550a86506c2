"""What an index costs retrieval: recalls through it beside those of exact search, and of a loop over all scores."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_up import build_bundle, make_run, make_stage, write_config
from made_up_sets import add_fragments
from test_fragment_search import SCORE

from pipeline.metrics.multivector_scores import exact_scores
from pipeline.multivectors import ScoreRule
from pipeline.run.layout import Layout
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("run") / "run", images=40)
    add_fragments(run, "dvsa", SCORE)
    return run


def costs(run: Path, model: str, index: dict) -> dict:
    """By direction, of the index that such settings build."""
    bundle = build_bundle(run, {"index": index}, model=model)
    shutil.copytree(bundle, run / "index" / model, dirs_exist_ok=True)
    write_config(run, {"models": [model], "regions": {"encoders": ["colour"]}})
    make_stage("evaluate", run, model, "test", "all-sentences", "--through-index")
    return json.loads(Layout(run).evaluation(model, "test", "all-sentences").path.read_text())["through_index"]


def test_the_cost_of_a_shortlist(run: Path) -> None:
    shortlist = {"shortlist": {"nearest": 30, "shortlist": 12}}
    told = {
        kind: costs(run, "dvsa", shortlist | {"exact_limit": limit})
        for kind, limit in (("exact", 1000), ("inverted", 10))
    }
    embeddings = Embeddings(Manifest(run / "manifest"), run / "embeddings/dvsa")
    both = [embeddings.read(modality, np.arange(n)) for modality, n in (("images", 40), ("sentences", 80))]
    scores, owners, test = exact_scores(*both, ScoreRule("words", 0)), np.repeat(np.arange(40), 2), range(2, 40, 3)
    ranks = {"image_to_sentence": [], "sentence_to_image": []}
    for image in test:  # ties count against the model
        own, other = scores[image, owners == image], scores[image, owners != image]
        ranks["image_to_sentence"].append(1 + (other >= own.max() - 1e-6).sum())
        for column in np.flatnonzero(owners == image):
            others = np.delete(scores[:, column], image)
            ranks["sentence_to_image"].append(1 + (others >= scores[image, column] - 1e-6).sum())
    for direction, gallery in (("sentence_to_image", 40), ("image_to_sentence", 80)):
        exact, rough = told["exact"][direction], told["inverted"][direction]
        expected = {f"recall@{k}": 100 * np.mean(np.array(ranks[direction]) <= k) for k in (1, 5, 10)}
        expected["median_rank"] = np.median(ranks[direction])
        assert exact["by_exact_search"] == exact["through_index"] == pytest.approx(expected)
        assert exact["gallery"] == rough["gallery"] == gallery
        assert (exact["depth"], rough["depth"]) == (gallery, 12) and rough["factory"].startswith("IVF")
        recalls = [f"recall@{k}" for k in (1, 5, 10)]
        assert [rough["by_exact_search"][k] for k in recalls] == pytest.approx([expected[k] for k in recalls])
