"""The study of Gong et al. in this process: every table from a tiny run, no number measured twice, and a sweep."""

import json
from pathlib import Path

import tiny_run
import whole_run
from cases import all_cases

NEEDED = ("ingest", "import_features", "prepare_text_encoder", "encode_sentences", "encode_documents")


def test_every_table_has_its_numbers_and_none_is_measured_again(tmp_path: Path) -> None:
    root, place = tmp_path / "data", tmp_path / "place"
    whole_run.make_collection(root)
    tiny_run.make_encoder(place / "run")
    cases = all_cases(root, place)

    def run(*names: str) -> None:
        for name in names:
            tiny_run.call_all(cases[name].stage, cases[name].calls)

    run(*NEEDED, "encode_fields", "accumulate_folds", "accumulate_auxiliary", "study", "tabulate")
    study = place / "run/study"
    text = (study / "tables.md").read_text()
    for number in range(1, 7):
        assert f"## Table {number}." in text
    line = next(line for line in text.splitlines() if line.startswith("| SAE (nonlinear)"))
    cells = [cell.strip(" *") for cell in line.split("|")[2:-1]]
    assert len(cells) == 9 and all(0 <= float(cell.split()[0].strip("*")) <= 100 for cell in cells)
    assert cells[3:] == ["23.60", "29.80", "32.83", "23.17", "29.50", "32.40"]  # as printed
    train = {line.split("\t")[0] for line in (root / "splits.tsv").read_text().splitlines() if line.endswith("train")}
    weak = [line.split("\t") for line in (root / "weak.tsv").read_text().splitlines()]
    titles = [len(row[1].split()) for row in weak if row[0] in train and row[1]]  # of words and spaces alone
    assert f"| Title, {sum(titles) / len(titles):.2f} words (printed: 2.93) |" in text
    shown = json.loads((study / "study.json").read_text())["transfer"]
    for case in shown:
        assert list(case["answers"])[0] == "Fully Supervised Only" and len(case["answers"]) == 2
        assert [len(images) for images in case["nearest"].values()] == [4, 4]
    right = [answer["right"] for case in shown for answer in case["answers"]["Fully Supervised Only"]]
    assert sum(right) >= len(shown) > 0  # every pair is found in this run
    assert {image["text"] for case in shown for image in case["nearest"]["auxiliary set"]} - {""}
    before = {path: path.stat().st_mtime_ns for path in (study / "cells").iterdir()}
    (study / "study.json").unlink()
    run("study", "sweep")
    assert {path: path.stat().st_mtime_ns for path in (study / "cells").iterdir()} == before
    swept = place / "run/sweeps/ncca"
    found = json.loads((swept / "sweep.json").read_text())
    assert [cell["target_folds"] for cell in found["cells"]] == [1, 2, 3]
    assert len((swept / "sweep.csv").read_text().splitlines()) == found["combinations"] + 1
    assert (swept / "sweep.svg").read_text().lstrip().startswith("<?xml")
