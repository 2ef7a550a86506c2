"""Tests of the stage `reproduce`: comparisons with published results, recorded settings, and the figures of Gong et
al.
"""

import json
from pathlib import Path

import numpy as np
import yaml
from synthetic_run import by_hand, make_run, make_stage

from pipeline.config.loading import load, validate
from pipeline.run import Run
from pipeline.run.layout import Layout
from pipeline.storage.commit import publish_record
from pipeline.storage.records import write_evaluation, write_measured, write_summary
from stages.papers.reproduce import digest_configuration, render_figures

MEASURES = {"recall@1": 20.0, "recall@5": 41.6, "recall@10": 55.0, "median_rank": 7.0, "mean_rank": 30.5}
PAPER = {
    "models": ["lstm"],
    "encoders": [{"name": "oxford", "architecture": "vgg19", "layer": "fc7"}],
    "lstm": {
        "loss": "ranking", "reduction": "sum", "negatives": "sampled", "margin": 0.2,
        "dimensions": 300, "peepholes": True, "optimiser": "sgd", "learning_rate": 1.0, "batch_size": 40,
    },
    "reproduce": {"collection": "flickr8k", "papers": ["karpathy", "kiros", "niu", "socher"]},
}  # fmt: skip


def reproduce(folder: Path, *names: str, protocol: str = "all-sentences", **changes: object) -> str:
    """Write an evaluation on test, with the values of MEASURES, for each of the models `names` of the run in `folder`.
    Then run `reproduce`, and return the Markdown page that the stage writes.

    The configuration is PAPER, in which `changes` replace whole sections.
    """
    layout = Layout(folder)
    found = []
    for rank, name in enumerate(names, 1):
        about = {"split": "test", "protocol": protocol, "n_images": 100, "n_sentences": 6}
        about["chance"] = {"sentence_to_image": MEASURES, "image_to_sentence": MEASURES}
        value = {"model": name, **about, "image_to_sentence": MEASURES, "sentence_to_image": MEASURES}
        ranks = {"image_to_sentence": np.full(3, 11 * rank), "sentence_to_image": np.full(6, 11 * rank)}
        ranks["owners"] = np.repeat(np.arange(3), 2)
        write_evaluation(layout.evaluation(name, "test", protocol).path, value, ranks, by_hand(layout.root))
        found.append(value)
    write_summary(layout.summary.path, found, "", by_hand(layout.root))
    layout.config.write_text(yaml.safe_dump({**PAPER, **changes}))
    make_stage("reproduce", folder)
    return layout.reproduction.path.read_text()


def test_generated_captions_are_compared_per_image(tmp_path: Path) -> None:
    generators = {"relu": {"generator": "mrnn", "cell": "relu"}, "near": {"generator": "nearest"}}
    layout = Layout(make_run(tmp_path))
    n = 6
    for name, matched in (("relu", 3), ("near", 1)):
        metrics = {f"bleu_{k}": 50.0 for k in range(1, 5)} | {"rouge_l": 1.0, "cider": 10.0 * matched, "meteor": None}
        value = {"generator": name, "of": "images", "split": "test", "n_images": n, "n_boxes": None, **metrics}
        arrays = {"matched": np.full((n, 4), matched), "made": np.full((n, 4), 4), "lengths": np.full((n, 2), 7)}
        arrays |= {"images": np.arange(n), "rouge_l": np.ones(n), "cider": np.full(n, 10.0 * matched)}
        value |= {"copied": 0.0, "length": 7.0}
        write_measured(
            layout.description_evaluation(name, "test").path, value, "statistics", arrays, by_hand(layout.root)
        )
    text = reproduce(
        tmp_path, "lstm", generators=["relu", "near"], generator_variants=generators,
        reproduce={**PAPER["reproduce"], "others": ["coco"], "reproduced": {"relu": "mrnn", "near": "nearest"}},
    )  # fmt: skip
    # The models match 3/4 and 1/4 of the n-grams. With one training, there is no interval.
    assert "| Our model minus Nearest Neighbor | +13.0 / +27.7 | +50.0 / +20.0 |" in text.splitlines()
    run = json.loads((tmp_path / "reproduction.json").read_text())["run"]
    assert run["seeds"] == {"lstm": [0], "relu": [0], "near": [0]}
    assert run["data"] == json.loads(layout.manifest.commit.read_text())["fingerprint"]
    assert run["configuration"] == digest_configuration(load(layout.config))


def test_the_digest_of_a_configuration_depends_on_every_default_but_not_on_the_machine() -> None:
    plain = digest_configuration(validate({}))
    assert plain != digest_configuration(validate({"fit": {"image_ridge": [7]}}))
    assert plain == digest_configuration(validate({"data_root": "elsewhere", "device": "cpu"}))


def test_the_figures_of_gong_et_al_are_rendered_as_html(tmp_path: Path) -> None:
    layout = Layout(make_run(tmp_path))
    case = {
        "image_id": 2,
        "answers": {
            "Target": [{"text": "a <b>dog</b>", "right": True}, {"text": "a cat", "right": False}],
            "SAE": [{"text": "a bird", "right": False}],
        },
        "nearest": {"target set": [{"image_id": 3, "text": "a horse"}], "auxiliary set": []},
    }
    publish_record(layout.study.commit, {"transfer": [case]}, provenance=by_hand(layout.root))
    (layout.root / "data/horse-3.png").unlink()
    html = render_figures(Run(tmp_path))
    assert "<h1>Target and SAE</h1>" in html and "a &lt;b&gt;dog" in html and html.count("<b>its own</b>") == 1
    assert html.count('<img src="data:image/jpeg') == 1 and html.count("not readable") == 1 and "a horse" in html
