"""The study of Gong et al. on a tiny run: it fills every table, and a rerun measures nothing again."""

import json
from pathlib import Path

import tiny_run
import yaml
from synthetic_run import by_hand

from pipeline.config.loading import merge
from pipeline.storage.records import write_summary

WEAK_TEXTS = ("title", "tags", "description")
STUDY_SETTINGS = {
    "auxiliary": {"splits": ["train"]}, "reproduce": {"papers": ["gong"]}, "evaluate": {"splits": []},
    "transfer": {"beta": [0.3], "auxiliary_dimensions": [4], "features": 12, "neighbours": 3},
    **dict.fromkeys(
        ("wsabie_sgd", "wsabie_adagrad"), {"max_norm": [10], "dimensions": 4, "epochs": 2}
    ),
    "study": {
        "folds": 2, "draws": 1, "further_draws": 1, "sizes": [1, 1, 1], "transfer_sizes": [1, 1, 1],
        "weak_sizes": [1, 1, 1, 1], "terms": [6, 8, 10], "fit": tiny_run.CONFIG["fit"],
    },
}  # fmt: skip


def test_the_study_fills_every_table_and_measures_nothing_twice(tmp_path: Path) -> None:
    root = tmp_path / "data"
    results = tmp_path / "run"
    tiny_run.make_collection(root)
    tiny_run.make_encoder(results)
    config = yaml.safe_load((root / "config.yaml").read_text())
    (root / "study.yaml").write_text(yaml.safe_dump(merge(config, STUDY_SETTINGS)))

    def call(command: str, *names: str, config: str = "study.yaml") -> None:
        tiny_run.call(command, [*names, "--run", str(results), "--set-config", str(root / config)])

    for command in ("ingest", "import_vectors", "prepare_encoder", "encode_sentences", "encode_documents"):
        tiny_run.call_all(command, tiny_run.stages(root, results)[command][0])
    for name in WEAK_TEXTS:
        call("encode_documents", name, "tfidf")
    call("accumulate", "study/target")
    for name in ("all", *WEAK_TEXTS):
        call("accumulate", f"study/auxiliary/{name}")
    call("study")
    write_summary(results / "evaluation/summary.json", [], "", by_hand(results))
    call("reproduce")
    study = results / "study"
    text = (results / "reproduction.md").read_text()
    for number in range(1, 7):
        assert f"## Gong et al.: Table {number}." in text
    line = next(line for line in text.splitlines() if line.startswith("| SAE (nonlinear)"))
    published, flickr, recalls, trainings, *_ = (cell.strip() for cell in line.split("|")[2:-1])
    assert (published, flickr) == ("23.6 / 29.8 / 32.83", "23.17 / 29.5 / 32.4")
    assert all(0 <= float(recall) <= 100 for recall in recalls.split(" / ")) and trainings == "1"
    train = {line.split("\t")[0] for line in (root / "splits.tsv").read_text().splitlines() if line.endswith("train")}
    weak = [line.split("\t") for line in (root / "weak.tsv").read_text().splitlines()]
    titles = [len(row[1].split()) for row in weak if row[0] in train and row[1]]  # Titles have only words and spaces.
    assert f"| Title, {sum(titles) / len(titles):.2f} words (published: 2.93) |" in text
    shown = json.loads((study / "study.json").read_text())["transfer"]
    for case in shown:
        assert list(case["answers"])[0] == "Fully Supervised Only" and len(case["answers"]) == 2
        assert [len(images) for images in case["nearest"].values()] == [4, 4]
    right = [answer["right"] for case in shown for answer in case["answers"]["Fully Supervised Only"]]
    assert sum(right) >= len(shown) > 0  # The model ranks a correct caption for every image of this run.
    assert {image["text"] for case in shown for image in case["nearest"]["auxiliary set"]} - {""}
    before = {path: path.stat().st_mtime_ns for path in (study / "cells").iterdir()}
    (study / "study.json").unlink()
    call("study")
    assert {path: path.stat().st_mtime_ns for path in (study / "cells").iterdir()} == before
