"""`reproduce`: which settings a row is said to have, by the configuration."""

from pathlib import Path

import pytest
import yaml
from made_up import make_stage

from pipeline.run.layout import Layout
from pipeline.storage.evaluations import write_summary

VALUES = {"recall@1": 20.0, "recall@5": 41.6, "recall@10": 55.0, "median_rank": 7.0, "mean_rank": 30.5}
PAPER = {
    "models": ["lstm"],
    "encoders": [{"name": "oxford", "architecture": "vgg19", "layer": "fc7"}],
    "lstm": {"loss": "ranking", "negatives": "sampled", "margin": 0.2, "dimensions": 300},
    "reproduce": {"collection": "flickr8k", "gong": False},
}


def reproduce(folder: Path, model: str, **changes: object) -> str:
    evaluation = {"model": model, "split": "test", "protocol": "all-sentences", "n_images": 1000, "n_sentences": 5000}
    evaluation |= {"fingerprint": "f", "inputs": {"manifest": "m", "embeddings/00000": "e"}}
    found = [{**evaluation, "image_to_sentence": VALUES, "sentence_to_image": VALUES}]
    layout = Layout(folder)
    write_summary(layout.summary.path, found, "")
    layout.config.write_text(yaml.safe_dump({**PAPER, **changes}))
    make_stage("reproduce", folder)
    return layout.reproduction.path.read_text()


def test_the_papers_own_settings_give_a_difference(tmp_path: Path) -> None:
    text = reproduce(tmp_path, "lstm")
    assert r"| LSTM, OxfordNet | `lstm` | 18 \| **20.0** \| +2.0 |" in text
    assert "No difference for `lstm` beside LSTM, OxfordNet" not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lstm": {}}, "loss info-nce, negatives all (printed: ranking, negatives sampled)"),
        ({"lstm": {**PAPER["lstm"], "margin": 0.3}}, "margin 0.3 (printed: 0.2)"),
        ({"encoders": [{"name": "net", "architecture": "resnet50"}]}, "encoders resnet50 average (printed: vgg19 fc7)"),
    ],
)
def test_other_settings_are_told_in_place_of_a_difference(tmp_path: Path, changes: dict, said: str) -> None:
    text = reproduce(tmp_path, "lstm", **changes)
    assert r"| LSTM, OxfordNet | `lstm` | 18 \| **20.0** | 40.9 \| **41.6** |" in text
    (note,) = [
        line for line in text.splitlines() if line.startswith("- No difference for `lstm` beside LSTM, OxfordNet")
    ]
    assert said in note


def test_a_row_of_regions_tells_how_they_are_scored_and_made(tmp_path: Path) -> None:
    regions = {"encoders": ["oxford"], "proposals": "grid"}
    text = reproduce(tmp_path, "dvsa", models=["dvsa"], regions=regions)
    (note,) = [line for line in text.splitlines() if line.startswith("- No difference for `dvsa` beside BRNN")]
    assert "score mean-words (printed: words)" in note and "regions 19 of grid (printed: 19 detections)" in note
