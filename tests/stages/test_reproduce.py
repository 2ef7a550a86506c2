"""`reproduce`: which settings a model is said to have, by the configuration, and which ranks are compared."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from made_up import make_stage

from pipeline.run.layout import Layout
from pipeline.storage.evaluations import write_evaluation, write_summary

VALUES = {"recall@1": 20.0, "recall@5": 41.6, "recall@10": 55.0, "median_rank": 7.0, "mean_rank": 30.5}
PAPER = {
    "models": ["lstm"],
    "encoders": [{"name": "oxford", "architecture": "vgg19", "layer": "fc7"}],
    "lstm": {
        "loss": "ranking", "negatives": "sampled", "resampled": "epoch", "margin": 0.2, "dimensions": 300,
        "peepholes": True, "optimiser": "sgd", "learning_rate": 1.0, "batch_size": 40,
    },
    "reproduce": {"collection": "flickr8k", "gong": False},
}  # fmt: skip


def reproduce(folder: Path, *names: str, **changes: object) -> str:
    layout, found = Layout(folder), []
    for rank, name in enumerate(names, 1):
        about = {"split": "test", "protocol": "all-sentences", "n_images": 100, "n_sentences": 6}
        about["chance"] = {"sentence_to_image": VALUES, "image_to_sentence": VALUES}
        value = {"model": name, **about, "image_to_sentence": VALUES, "sentence_to_image": VALUES}
        value |= {"fingerprint": "f", "inputs": {"manifest": "m", f"embeddings/{name}": "e"}}
        ranks = {"image_to_sentence": np.full(3, 11 * rank), "sentence_to_image": np.full(6, 11 * rank)}
        ranks["owners"] = np.repeat(np.arange(3), 2)
        write_evaluation(layout.evaluation(name, "test", "all-sentences").path, value, ranks)
        found.append(value)
    write_summary(layout.summary.path, found, "")
    layout.config.write_text(yaml.safe_dump({**PAPER, **changes}))
    make_stage("reproduce", folder)
    return layout.reproduction.path.read_text()


def test_the_papers_own_settings_give_a_difference(tmp_path: Path) -> None:
    text = reproduce(tmp_path, "lstm")
    assert "|  | `lstm` | **20.0** (+2.0) |" in text
    (note,) = [line for line in text.splitlines() if line.startswith("- `lstm` beside LSTM, OxfordNet")]
    assert "learns from train" in note and "no difference" not in note


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lstm": {}}, "loss info-nce (printed: ranking); negatives all (printed: sampled)"),
        ({"lstm": {**PAPER["lstm"], "margin": 0.3}}, "margin 0.3 (printed: 0.2)"),
        ({"encoders": [{"name": "net", "architecture": "resnet50"}]}, "encoders resnet50 average (printed: vgg19 fc7)"),
    ],
)
def test_other_settings_are_told_in_place_of_a_difference(tmp_path: Path, changes: dict, said: str) -> None:
    text = reproduce(tmp_path, "lstm", **changes)
    (note,) = [line for line in text.splitlines() if line.startswith("- `lstm` beside LSTM, OxfordNet")]
    assert said in note and "no difference is given" in note
    assert "(+2.0)" not in text


def test_a_network_in_place_of_a_printed_one_stands_below_its_row_alone(tmp_path: Path) -> None:
    own = {"encoders": [{"name": "mine", "architecture": "resnet50"}]}
    papers = {"collection": "flickr8k", "gong": False}
    below = "- `lstm` beside LSTM"
    text = reproduce(tmp_path / "unsaid", "lstm", **own, reproduce=papers)
    assert f"{below}, OxfordNet:" in text and f"{below}:" in text
    text = reproduce(tmp_path / "said", "lstm", **own, reproduce={**papers, "in_place_of": {"mine": "vgg19 fc7"}})
    assert f"{below}, OxfordNet:" in text and f"{below}:" not in text
    assert "encoders resnet50 average (printed: vgg19 fc7); in place of vgg19 fc7" in text
    assert "LSTM: none of ours, " in text


def test_a_row_of_regions_tells_how_they_are_scored_and_made(tmp_path: Path) -> None:
    regions = {"encoders": ["oxford"], "proposals": "grid"}
    text = reproduce(tmp_path, "dvsa", models=["dvsa"], regions=regions)
    (note,) = [line for line in text.splitlines() if line.startswith("- `dvsa` beside BRNN")]
    assert "sum mean-words (printed: words)" in note and "regions 19 of grid (printed: 19 detections" in note


def test_seeds_of_a_variant_are_one_system_and_orders_are_judged_by_their_ranks(tmp_path: Path) -> None:
    variants = {"tree": {"model": "sdtrnn", "seeds": [3, 4]}, "flat": {"model": "dtrnn", "seeds": [3, 4]}}
    models = {"models": ["tree", "flat"], "variants": variants}
    text = reproduce(
        tmp_path,
        *("tree-seed3", "tree-seed4", "flat-seed3", "flat-seed4"),
        **models,
        reproduce={"collection": "pascal1k", "gong": False},
    )
    assert "|  | `tree, 2 seeds` | **30.5** ± 0.0 |" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| SDT-RNN above DT-RNN |")]
    assert line.endswith("| -22.0 (-33.0 to -11.0) | yes |")  # ranks of 11 or 22 less 33 or 44
