"""Tests of the page of a synthetic run: its contents, and that it loads no other files."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from outline import Outline, report
from synthetic_multivectors import write_regions
from synthetic_run import THINGS, by_hand, make_run, make_stage, run_command

from pipeline.config.names import Config
from pipeline.errors import IntegrityError
from pipeline.run.layout import Layout
from pipeline.storage.commit import publish_record
from pipeline.storage.json_files import read_json
from pipeline.storage.regions import write_phrases
from pipeline.storage.tables import vectors_column


@pytest.fixture(scope="module")
def page(run: Path) -> Outline:
    """Return the parsed page of the unchanged run."""
    return report(run)


@pytest.fixture(scope="module")
def html(page: Outline, run: Path) -> str:
    return Layout(run).report.path.read_text()


def test_the_first_lines_describe_the_collection_and_how_to_search_it(page: Outline, run: Path) -> None:
    assert "24 photos and 48 captions" in page.below("")
    assert f"jointspace search {run / 'index/ncca'} 'a dog'" in page.below("")


def test_the_links_of_the_contents_lead_to_existing_sections(page: Outline, html: str) -> None:
    anchors = [address[1:] for address in page.addresses if address.startswith("#")]
    assert anchors == ["retrieval", "answers", "map", "collection", "encoders", "indexes"]
    assert all(html.count(f'id="{anchor}"') == 1 for anchor in anchors)


def test_photos_have_their_captions_as_alternative_texts(html: str) -> None:
    assert 'alt="a dog"' in html and 'alt="dog-0.png"' not in html


def test_the_page_loads_no_other_files(page: Outline, html: str) -> None:
    assert len(page.addresses) >= 30
    assert all(address.startswith(("data:image/", "#")) for address in page.addresses)
    assert not re.search(r"<script|http|@import|url\(", html)


def test_the_figures_of_the_page_are_stored_as_json(run: Path) -> None:
    page = Layout(run).report.path
    page.unlink(missing_ok=True)
    value = json.loads(make_stage("report", run, "--format", "json").splitlines()[-1])
    assert not page.exists() and value["best_model"] == "ncca"
    measured = {one["split"]: one for one in read_json(Layout(run).summary.path)}
    for comparison in value["retrieval"]:
        cell = comparison["cells"]["ncca"]["sentence_to_image"]["recall@5"]
        assert cell["value"] == measured[comparison["split"]]["sentence_to_image"]["recall@5"]
    success = value["examples"]["successes"][0]
    assert success["rank"] == 1 and success["answers"][0]["what"].endswith(".png")
    assert value["collection"]["counts"]["images"]["kept"] == 24


def test_retrieval_results_are_those_of_the_evaluation(page: Outline, run: Path) -> None:
    (evaluation,) = [one for one in read_json(Layout(run).summary.path) if one["split"] == "test"]
    for place, direction in enumerate(("image_to_sentence", "sentence_to_image")):
        measured = evaluation[direction]
        ncca, chance = page.rows("Retrieval", place)
        assert (ncca["model"], chance["model"]) == ("ncca", "chance")
        for column in ("R@1", "R@5", "R@10"):
            name = column.replace("R@", "recall@")
            low, high = measured[f"{name}_ci95"]
            assert ncca[column] == f"{measured[name]:.1f} {low:.1f}–{high:.1f}"
            assert chance[column] == f"{evaluation['chance'][direction][name]:.1f}"
        assert float(ncca["median"].split()[0]) == measured["median_rank"]
    summary = page.below("The best model: ncca")
    assert f"{evaluation['sentence_to_image']['recall@10']:.1f} % R@10, caption to photo" in summary
    assert "The encoder colour is untrained" in summary


def test_the_collection_is_counted_and_its_rejects_are_explained(page: Outline) -> None:
    counts = {"read": "25", "kept": "24", "rejected": "1", "duplicate": "0", "ignored": "0"}
    assert page.rows("Collection")[0] == {"": "photos", **counts}
    (left_out,) = page.rows("Rejected input and the reasons")
    assert left_out == {"what": "image", "reason": "truncated", "how often": "1", "for example": "broken.png"}


def test_an_index_has_the_figures_of_its_card(page: Outline, run: Path) -> None:
    cards = read_json(run / "index/ncca/card.json")
    rows = page.rows("Indexes")
    assert [row["vectors of"] for row in rows] == ["images", "sentences"]
    for row in rows:
        card = cards[row["vectors of"]]
        assert row["factory string"] == "Flat"
        assert (row["count"], row["dimensions"]) == (str(card["count"]), str(card["dim"]))
        assert row["index recall@10"] == f"{card['recall@10']:.3f}"
        assert row["measured with"] == {"images": "captions", "sentences": "images"}[row["vectors of"]]
        assert row["queries/s per core"] == f"{card['queries_per_second']:,.0f}"
    recalls = [list(row.values()) for row in page.rows("Index recall under conditions")]
    assert recalls[:2] == [["ncca", "images", share, "1.000", "1.000"] for share in ("50 %", "10 %")]


def test_published_tables_of_the_collection_are_shown_with_the_results_of_the_run(page: Outline, own: Path) -> None:
    assert not [above for above, _ in page.tables if above.startswith("Published")]
    flickr = report(own, {"reproduce": {"collection": "flickr8k"}})
    lines = flickr.lines("Published: Karpathy and Fei-Fei, Table 5, Flickr8K")
    assert ["BRNN", "16.5", "40.6", "54.2", "7.6", "11.8", "32.1", "44.7", "12.4"] in lines
    assert not [above for above, _ in flickr.tables if "Flickr30K" in above]
    pascal = report(own, {"reproduce": {"collection": "pascal1k"}})  # has mean ranks in place of median ranks
    lines = pascal.lines("Published: Socher et al., Table 3, search and describing")
    assert [title for title in lines[0] if title] == ["caption to photo", "photo to caption"]
    assert lines[1] == ["system", *2 * ["mean rank", "R@1", "R@5", "R@10"]]
    assert ["SDT-RNN", "12.5", "16.4", "46.6", "65.6", "16.9", "23.0", "45.0", "63.0"] in lines


def test_scores_of_generated_captions_are_a_table_with_reasons_for_missing_values(own: Path) -> None:
    figures = {"bleu_1": 51.23, "bleu_2": 40, "bleu_3": 30, "bleu_4": 20, "rouge_l": 45, "cider": 99.04, "meteor": None}
    whole = {**figures, "copied": 5, "length": 2.6, "n_images": 8, "n_boxes": None, "split": "test"}
    whole |= {"generator": "mrnn", "of": "images", "not_measured": {"meteor": "no <Java>"}}
    layout = Layout(own)
    described = {"generator": "mrnn", "of": "images", "split": "test", "images": []}
    publish_record(layout.descriptions("mrnn", "test").commit, described, provenance=by_hand(own))
    for subject, value in {"test": whole, "test.boxes": {**whole, "of": "boxes", "n_boxes": 21}}.items():
        publish_record(layout.description_evaluation("mrnn", subject).path, value, provenance=by_hand(own))
    write_regions(own)
    shown = {
        "generators": ["mrnn"],
        "regions": {"encoders": ["colour"]},
        "describe": {"splits": ["test"], "boxes": True},
    }
    page = report(own, shown)
    heading = "Scores of generated captions"
    images, boxes = page.lines(heading)[1:]
    assert images == ["mrnn", "8 photos", "test", "51.2", "40.0", "30.0", "20.0", "45.0", "99.0", "–", "5.0", "2.6"]
    assert boxes[:4] == ["mrnn", "21 boxes", "test", "51.2"]
    assert "METEOR (no <Java>)" in page.below(heading)
    assert "or against the texts of the file describe.region_texts" in page.below(heading)


def test_measures_of_phrases_and_regions_are_a_table(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(own)
    splits = [("ncca", "dev"), ("ncca", "test")]
    made = {"model": "ncca"}
    ranks = {"recall@1": 4.04, "recall@5": 14.3, "recall@10": 22.0, "median_rank": 50.0, "mean_rank": 70.0}
    measured = {
        "n_named": 1234,
        "n_regions": 800,
        "correspondence": {"right": 47.6, "chance": 24.3},
        "phrase_to_region": {"split": ranks},
        "region_to_phrase": {"split": {**ranks, "recall@1": 6.1}},
    }
    left_out = {**made, "split": "dev", "left_out": "no box has a label"}
    publish_record(layout.phrase_ranking("ncca", "dev").path, left_out, provenance=by_hand(own))
    ranking = layout.phrase_ranking("ncca", "test").path
    publish_record(ranking, {**made, "split": "test", **measured}, provenance=by_hand(own))
    vector = vectors_column(np.ones((1, 4)))
    image = {"image_id": [2]}
    region = pa.table({**image, "number": [0], **dict.fromkeys(("x1", "y1", "x2", "y2"), [0.0]), "vector": vector})
    phrase = pa.table({**image, "sentence_id": [4], "text": ["a dog"], "head": ["dog"], "vector": vector})
    for names in splits:
        details = dict(zip(("model", "split"), names, strict=True)) | {"dim": 4}
        write_phrases(layout.phrases(*names).path, region, phrase, provenance=by_hand(own), details=details)
    heading = "Phrases and regions"
    monkeypatch.setattr(Config, "phrase_splits", lambda config, chosen=(): splits)
    dev, test = report(own).lines(heading)[2:]
    assert dev == ["ncca", "dev", "no box has a label"]
    assert test == ["ncca", "test", "1,234", "800", "4.0", "14.3", "22.0", "6.1", "14.3", "22.0", "47.6", "24.3"]
    publish_record(ranking, {**made, "split": "test"}, provenance=by_hand(own))
    with pytest.raises(IntegrityError, match="ncca.test.json has no key n_named"):
        report(own)


def test_photos_minus_and_plus_words_are_shown_if_the_words_are_known(run: Path) -> None:
    searches = {"ncca": [["the big dog", "dog", "cat"], ["a dog", "zebra", "cat"]]}
    page = report(run, {"reproduce": {"arithmetic": searches}})
    assert "“the big dog” − “dog” + “cat”" in page.below("What ncca finds") and "zebra" not in page.text
    section = Layout(run).report.path.read_text().partition("“the big dog” −")[2].partition("</ol>")[0]
    photos = re.findall(r'alt="([^"]*)"', section)
    assert photos[:4] == ["a dog", "a cat", "a cat", "a cat"] and len(photos) == 5  # There are three photos of cats.


def test_photos_that_were_added_to_an_index_are_not_in_the_report_of_its_run(own: Path, tmp_path: Path) -> None:
    searches = [[f"the big {thing}", thing, "cat"] for thing in THINGS]
    before = report(own, {"reproduce": {"arithmetic": {"ncca": searches}}}).below("What ncca finds")
    run_command("add", own / "index/ncca", make_run(tmp_path / "more", images=40))
    Layout(own).report.path.unlink()
    assert report(own, {"reproduce": {"arithmetic": {"ncca": searches}}}).below("What ncca finds") == before
