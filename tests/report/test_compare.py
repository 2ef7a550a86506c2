"""Tests of `compare`, which compares the models of runs with each other and with a table of published results."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic_run import make_run, make_stage, open_run, run_command, write_config

from pipeline.errors import InputError, UsageError
from pipeline.metrics.retrieval import Bootstrap
from pipeline.report.page import compared_as_text, render_page
from pipeline.report.tables import (
    HEADINGS,
    RECALL_COLUMNS,
    compare_systems,
    measured_system,
    merge_seed_systems,
)
from stages.results.compare import _learned_photos, _read_figures, command


def system(name: str, better: int, photos: list[str], seed: int = 0):
    """Make a system in which photos with a number below `better` have rank 1, and other photos have random ranks.

    `photos` are n names of photos: the numbers from 0 to n - 1 in any order.
    """
    rng = np.random.default_rng(seed)
    n = len(photos)
    order = [int(photo) for photo in photos]
    ranks = np.where(np.arange(n) < better, 1, rng.integers(1, n, n))[order].astype(np.int32)
    found = {"image_to_sentence": ranks, "sentence_to_image": ranks, "owners": np.arange(n, dtype=np.int32)}
    recalls = {m: 100 * float((ranks <= int(m.partition("@")[2])).mean()) for _, m in RECALL_COLUMNS}
    return measured_system("run", {"model": name, **dict.fromkeys(dict(RECALL_COLUMNS), recalls)}, found, photos)


def test_photos_are_paired_by_name_and_not_by_order() -> None:
    photos = [str(number) for number in range(200)]
    first = system("a", 150, photos)
    same = system("b", 150, photos[::-1])
    (_, row) = compare_systems([first, same], Bootstrap(200, 0))
    assert row["minus"]["difference"] == 0 and row["minus"]["ci95"] == [0, 0]
    worse = compare_systems([first, system("c", 20, photos)], Bootstrap(200, 0))[1]["minus"]
    assert worse["difference"] < worse["ci95"][1] < 0
    assert "ci95" not in compare_systems([first, system("d", 20, photos[:100])], Bootstrap(200, 0))[1]["minus"]


def test_seeds_of_a_model_are_compared_as_one_system() -> None:
    photos = [str(number) for number in range(200)]
    seeds = [system(f"a-seed{seed}", better, photos, seed) for seed, better in enumerate((150, 140, 145))]
    other = system("b", 20, photos)
    (together, alone), bootstrap = merge_seed_systems([*seeds, other]), Bootstrap(200, 0)
    assert (together.name, alone.name) == ("a, 3 seeds", "b")
    assert together.recalls == pytest.approx(np.mean([one.recalls for one in seeds], axis=0))
    deviations = np.std([[*one.recalls, one.sum] for one in seeds], axis=0, ddof=1)
    assert together.deviations == pytest.approx(deviations) and set(alone.deviations) == {None}
    lines = compared_as_text(compare_systems([together, alone], bootstrap)).splitlines()
    shown = next(line for line in lines if line.startswith("a, 3 seeds"))
    assert f"{together.sum:5.1f} ±{deviations[-1]:4.1f}" in shown
    assert "±" not in next(line for line in lines if line.startswith("b ("))
    rows = compare_systems([together, alone], bootstrap)
    about = {"reference": alone, "split": "test", "protocol": "p", "warnings": []}
    page = " ".join(render_page("compared.html", rows=rows, **about).split())
    assert f"<td>{together.sum:.1f}<small>± {deviations[-1]:.1f}</small></td>" in page
    found = alone.minus(together, bootstrap)
    expected = np.mean([alone.minus(one, bootstrap)["difference"] for one in seeds])
    assert found["difference"] == pytest.approx(expected) and found["ci95"][0] < expected < found["ci95"][1]


def test_a_table_of_published_results_needs_names_and_percentages(tmp_path: Path) -> None:
    path = tmp_path / "others.csv"
    path.write_text(f"model,{','.join(HEADINGS)}\nSCAN,52.2,81,89.2,38.3,67.8,78.9\nm-RNN,14.5,-,48.5,,,\n")
    scan, mrnn = _read_figures(path)
    assert scan.sum == pytest.approx(407.4) and mrnn.sum is None and mrnn.recalls[:3] == [14.5, None, 48.5]
    path.write_text(f"model,{HEADINGS[0]}\nSCAN,many\n")
    with pytest.raises(InputError, match="line 2"):
        _read_figures(path)


def test_a_run_is_compared_with_a_copy_and_with_a_table(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    table = tmp_path / "others.csv"
    shutil.copytree(run, other)
    table.write_text(f"model,{','.join(HEADINGS)}\n<SCAN>,52.2,81,89.2,38.3,67.8,78.9\n")
    output = tmp_path / "page.html"
    done = CliRunner().invoke(command, [str(run), str(other), str(table), "--output", str(output)])
    assert done.exit_code == 0, done.output
    assert "+0.0  (+0.0 to +0.0)" in done.output and "407.4" in done.output and "ranks are unknown" in done.output
    heading, first, *_ = done.output.splitlines()
    assert (
        heading.endswith(f"reference {first.partition(')')[0]}):") and f"The page {output} was written" in done.output
    )
    assert "reference" in output.read_text() and "&lt;SCAN&gt;" in output.read_text()


def test_a_difference_without_resamples_has_a_dash_in_place_of_the_interval() -> None:
    photos = [str(number) for number in range(200)]
    reference = system("a", 150, photos)
    rows = compare_systems([reference, system("b", 20, photos)], Bootstrap(0, 0))
    difference = f"{rows[1]['minus']['difference']:+.1f}"
    *_, shown, note = compared_as_text(rows).splitlines()
    assert shown.endswith(f"{difference}  (-)") and "evaluate.bootstrap is 0" in note
    about = {"reference": reference, "split": "test", "protocol": "p", "warnings": []}
    page = " ".join(render_page("compared.html", rows=rows, **about).split())
    assert f"<td>{difference}<small>–</small></td>" in page and "nan" not in page


def test_the_reference_is_a_model_of_the_first_run_and_not_of_a_table_before_it(run: Path, tmp_path: Path) -> None:
    table = tmp_path / "others.csv"
    table.write_text(f"model,{','.join(HEADINGS)}\nSCAN,52.2,81,89.2,38.3,67.8,78.9\n")
    said = run_command("compare", table, run, "--output", tmp_path / "page.html")
    assert said.splitlines()[0].endswith(f"({run}):")


def test_the_same_run_is_refused_twice(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    for again in (run, run / "../" / run.name, tmp_path / "link"):
        with pytest.raises(UsageError, match="is given twice"):
            run_command("compare", run, again, "--output", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_test_photos_that_another_run_has_trained_on_are_counted(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Checks the number of test photos of each run that are training photos of the other run. The run has 24 photos,
    and its test photos are 2, 5, ..., 23. The other run has the first 18 photos, and its test photos are 1, 4, ..., 16.
    """
    other = make_run(tmp_path / "other", images=18, first_held_out=1)
    write_config(other, {"models": ["ncca"], "evaluate": {"splits": ["test"], "protocols": ["all-sentences"]}})
    make_stage("evaluate", other, "ncca", "test", "all-sentences")
    make_stage("summarise", other)
    output = tmp_path / "page.html"
    run_command("compare", run, other, "--output", output)
    for warning in (
        f"6 of 8 test photos of {run} are training photos of {other}",
        f"6 of 6 test photos of {other} are training photos of {run}",
    ):
        assert warning in caplog.text and warning in output.read_text()
    caplog.clear()
    run_command("compare", run, shutil.copytree(run, tmp_path / "copy"), "--output", output)
    assert "training photos" not in caplog.text + output.read_text()


@pytest.mark.parametrize(
    ("split", "model", "count"),
    [
        ("dev", {"model": "ncca"}, 16),
        ("dev", {"model": "ncca", "refit": True}, 24),
        ("weak", {"model": "ncca", "training": "stacked"}, 24),
    ],
)
def test_refits_learn_from_dev_photos_and_stacked_models_from_weak_photos(
    tmp_path: Path, split: str, model: dict[str, object], count: int
) -> None:
    run = make_run(tmp_path / "run", held_out=split)
    write_config(run, {"models": ["mine"], "variants": {"mine": model}})
    assert len(_learned_photos(open_run(run))) == count


def test_a_missing_evaluation_names_those_that_the_run_has(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="It has these: --split test --protocol all-sentences, --split train"):
        run_command("compare", run, "--split", "dev", "--output", tmp_path / "page.html")
