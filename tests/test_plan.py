"""Plans: sizes, forecast, comparison with what was measured, and the machine."""

import hashlib
import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from made_up import make_stage
from PIL import Image

from pipeline import config
from pipeline.errors import IntegrityError, UsageError
from pipeline.index import build, build_gallery, candidates, pieces
from pipeline.models.linear import accumulation
from pipeline.plan import forecast as forecasts
from pipeline.plan import kernels, machine, needs
from pipeline.plan.comparison import Fact, add_up, compare, cost_table, duration, misfits, render, total
from pipeline.plan.forecast import Forecast, forecast
from pipeline.plan.machine import examine, free_disk
from pipeline.plan.rates import Rates, extraction_rate, rate
from pipeline.plan.sizes import Sizes, sizes_of
from pipeline.run import Run
from pipeline.run.layout import Layout
from pipeline.run.stage import needed
from pipeline.storage.atomic import publish_record
from pipeline.storage.benchmarks import read_benchmarks
from pipeline.storage.manifest import BOXES, DOCUMENTS, IMAGES, SENTENCES, Manifest
from pipeline.storage.manifest_writer import write_manifest
from stages.catalogue import declared
from stages.operations.plan import command
from stages.rates import measure_texts

STAGES = declared()
BY_SHARD = {
    "encode_documents",
    "extract",
    "pool_regions",
    "reduce_regions",
    "encode_sentences",
    "encode_tokens",
    "encode_trees",
    "parse",
}
BY_SHARD |= {"accumulate", "embed", "encode_documents"}
"""Stages whose jobs read the manifest's rows of their shards alone."""
READS_MANIFEST = r"run\.(manifest|pairs|embeddings|features)|read_(material|text_material|study|described)"
SUMMARY = {"splits": {"train": 6000, "dev": 1000, "test": 1000}, "counts": {"sentences": {"kept": 40000}}}
FACTS = {"fit": Fact(2, 30.0, 55.0, 700.0), "make_demo": Fact(1, 90.0, 80.0, 200.0)}


@pytest.fixture
def settings(tmp_path: Path) -> config.Config:
    values = {
        "name": "planned", "results_root": str(tmp_path), "demo": {"generate": False}, "models": ["ncca"],
        "encoders": [{"name": "net", "architecture": "resnet50", "weights": "untrained", "resize": 64, "crop": 64}],
        "extract": {"decode_workers": 0, "precision": "float32"}, "shard_size": 1000,
    }  # fmt: skip
    (tmp_path / "planned.yaml").write_text(yaml.safe_dump(values))
    return config.load(tmp_path / "planned.yaml")


def rates_of(images: float | None, inspected: float, encoded: float, flops: float, starts: float) -> Rates:
    """Of one encoder, `net`; a process without torch starts in half the time."""
    net = {"net": images}
    return Rates(net, net, net, inspected, {"tfidf": encoded}, 0.1, flops, starts, starts / 2, 1.0)


def forecast_of(settings: config.Config, sizes: Sizes, rates: Rates, gpu: bool) -> list[Forecast]:
    """Of a run each of whose shards is a part."""
    made = needed(STAGES, settings, Layout(Path(settings.results_root)))
    return forecast(settings, made, sizes, rates, sizes.shards, gpu)


def seconds(stages: list[Forecast], rule: str) -> float:
    return next(stage.seconds for stage in stages if stage.rule == rule)


def test_extraction_is_images_over_rate_and_a_start_for_each_shard(settings: config.Config) -> None:
    s = sizes_of(settings, SUMMARY)
    assert (s.images, s.shards, s.dim, s.texts) == (8000, 8, 2048, 5)
    rates = rates_of(50.0, 100.0, 1000.0, 1e11, 2.0)
    stages = forecast_of(settings, s, rates, gpu=False)
    assert seconds(stages, "extract") == 160 + 32  # eight jobs of two processes that take two seconds to start
    assert seconds(stages, "ingest") == 80 + 1
    made = needed(STAGES, settings, Layout(Path(settings.results_root)))
    (in_two,) = (one for one in forecast(settings, made, s, rates, 2, False) if one.rule == "extract")
    assert (in_two.jobs, in_two.seconds) == (2, 160 + 8)  # of four shards each, made by one process
    twice = forecast_of(settings, s, rates_of(100.0, 100.0, 1000.0, 2e11, 2.0), gpu=False)
    assert seconds(twice, "extract") == 80 + 32
    assert seconds(twice, "fit") < seconds(stages, "fit") < 2 * seconds(twice, "fit")
    unknown = forecast_of(settings, s, rates_of(None, 100.0, 1000.0, 1e11, 2.0), gpu=False)
    assert seconds(unknown, "extract") is None


def test_photographs_that_encoders_decode_together_are_counted_once(settings: config.Config) -> None:
    second = settings.encoders[0].model_copy(update={"name": "second"})
    both = settings.model_copy(update={"encoders": (*settings.encoders, second)})
    rates = replace(
        rates_of(50.0, 100.0, 1000.0, 1e11, 2.0), images={"net": 50.0, "second": 50.0}, forward={"second": 100.0}
    )
    s = sizes_of(both, SUMMARY)
    assert seconds(forecast_of(both, s, rates, gpu=False), "extract") == 160 + 32 + 80 + 8
    apart = both.model_copy(update={"extract": both.extract.model_copy(update={"together": False})})
    assert seconds(forecast_of(apart, s, rates, gpu=False), "extract") == 2 * (160 + 32)


def summary_of(train: int, dev: int = 1000) -> dict:
    return {"splits": {"train": train, "dev": dev}, "counts": {"sentences": {"kept": 5 * (train + dev)}}}


def test_work_grows_as_its_operations_do(settings: config.Config) -> None:
    """X'X with the images and with the square of the dimensions, searching and ranking with the vectors' product; on a
    processor so slow that nothing else counts."""
    rates = rates_of(1e9, 1e9, 1e9, 1e6, 0.0)

    def taken(rule: str, summary: dict, terms: int = 2000, **dims: int) -> float:
        return seconds(forecast_of(settings, sizes_of(settings, summary, dims, {"tfidf": terms}), rates, False), rule)

    base, more, longer = summary_of(6000), summary_of(12000), summary_of(6000, dev=2000)
    assert taken("accumulate", more) == pytest.approx(2 * taken("accumulate", base), rel=0.02)
    assert taken("accumulate", base, net=4096) == pytest.approx(4 * taken("accumulate", base), rel=0.02)
    assert taken("embed", more) == pytest.approx(13 / 7 * taken("embed", base), rel=0.02)
    assert taken("embed", base, net=4096) == pytest.approx(2 * taken("embed", base), rel=0.02)
    assert taken("evaluate", longer) == pytest.approx(4 * taken("evaluate", base), rel=0.02)
    assert taken("build_index", more) == pytest.approx(13 / 7 * taken("build_index", base), rel=0.02)
    alone = summary_of(6000, dev=0)  # no ranks
    assert taken("fit", more) == pytest.approx(taken("fit", base), rel=0.01)  # from moments, whatever their rows
    assert 7 * taken("fit", alone) < taken("fit", alone, 4000, net=4096) < 8.1 * taken("fit", alone)


def test_two_thousand_dimensions_of_six_thousand_images_by_hand(settings: config.Config) -> None:
    """25.2e9 operations at six tenths of 1e10 a second, and six files of 39 MB at 150 MB a second."""
    summary = summary_of(6000, dev=0)
    found = seconds(
        forecast_of(settings, sizes_of(settings, summary), rates_of(9, 9, 9, 1e10, 0.0), False), "accumulate"
    )
    assert found == pytest.approx(4.19 + 1.55, abs=0.05)


def test_memory_does_not_grow_with_the_number_of_shards_where_it_must_not(settings: config.Config) -> None:
    def memory(rule: str, times: int) -> float:
        splits = {name: times * count for name, count in SUMMARY["splits"].items()}
        summary = {"splits": splits, "counts": {"sentences": {"kept": times * 40000}}}
        return STAGES[rule].needs.memory(sizes_of(settings, summary))

    for rule in ("fit", "evaluate", "report", "prepare_text_encoder", "build_token_vocabulary"):
        assert memory(rule, 125) < memory(rule, 1) + 12, rule  # the commits of a thousand shards
    for rule in BY_SHARD:
        assert memory(rule, 125) < memory(rule, 1) + 1, rule


def test_an_index_in_pieces_asks_for_a_workers_memory(settings: config.Config) -> None:
    """Beside 24 bytes of ids and owners for an image and a sentence, and the rows of a piece."""

    def memory(millions: int) -> float:
        summary = {"splits": {"train": millions * 10**6}, "counts": {"sentences": {"kept": millions * 10**6}}}
        return STAGES["build_index"].needs.memory(sizes_of(settings, summary))

    assert settings.index.piece == 4 * 10**6 and settings.index.worker_memory == 4096
    assert memory(4) > 3 * 4 * 8 * 10**6 * 128 / 2**20  # which is whole
    assert 4096 < memory(100) < 12_000
    assert memory(200) - memory(100) < 1.5 * 24 * 100 * 10**6 / 2**20


def test_every_job_that_reads_the_manifest_asks_for_the_memory_that_it_takes(
    settings: config.Config, tmp_path: Path
) -> None:
    """At least the bytes of Arrow's own arrays, for images and sentences in the same shards."""
    write_made_up_manifest(tmp_path / "manifest", images=2000, sentences_each=5)
    manifest = Manifest(tmp_path / "manifest")
    held = (manifest.images.nbytes + manifest.sentences.nbytes) / 2000
    few, many = (
        sizes_of(settings, {"splits": {"train": 8000 * times}, "counts": {"sentences": {"kept": 40000 * times}}})
        for times in (1, 100)
    )
    assert few.shard_images == many.shard_images
    sources = {name: inspect.getsource(inspect.getmodule(stage.function)) for name, stage in STAGES.items()}
    reading = {name for name, stage in STAGES.items() if stage.sharded or re.search(READS_MANIFEST, sources[name])}
    without = {"fit", "evaluate", "plan", "adopt", "prepare_encoder"}  # which read columns, a sample, or two shards,
    without |= {"fit_csls", "learn_components", "build_index"}  # or columns, shards in turn, and pieces
    without |= {"report", "prepare_text_encoder", "build_token_vocabulary"}  # or shards in turn
    reading -= BY_SHARD | without
    assert len(reading) > 20
    for rule in reading:
        grown = STAGES[rule].needs.memory(many) - STAGES[rule].needs.memory(few)
        assert grown * 2**20 > held * (many.images - few.images), rule
    learning, simulating = (replace(many, **{name: True}) for name in ("learns", "simulated"))
    for rule, sizes in {"prepare_encoder": learning, "encode_documents": simulating}.items():
        assert STAGES[rule].needs.memory(sizes) > STAGES[rule].needs.memory(many) + held * many.images / 2**20
    others = {"make_demo", "ingest", "train_parser", "tabulate", "reproduce", "summarise", "list_relations"}
    assert sources.keys() - reading - BY_SHARD - without <= others
    for rule in BY_SHARD:
        assert STAGES[rule].needs.memory(few) * 2**20 > held * few.shard_images, rule


def write_made_up_manifest(folder: Path, images: int, sentences_each: int) -> None:
    ids = range(images)
    about = {"member": None, "offset": None, "size": None, "split": "train", "width": 500, "height": 375}
    rows = [{"image_id": n, "path": f"images/{n:012d}.jpg", "sha256": f"{n:064x}", **about} for n in ids]
    texts = [(n, "a brown dog runs over green grass with a stick") for n in ids for _ in range(sentences_each)]
    sentences = [{"sentence_id": number, "image_id": n, "text": text} for number, (n, text) in enumerate(texts)]
    tables = {"images": pa.Table.from_pylist(rows, IMAGES), "sentences": pa.Table.from_pylist(sentences, SENTENCES)}
    tables |= {"documents": DOCUMENTS.empty_table(), "boxes": BOXES.empty_table()}
    write_manifest(folder, folder, [tables], [], {}, 16384)


def test_what_does_not_fit_names_the_key(settings: config.Config) -> None:
    stages = forecast_of(settings, sizes_of(settings, SUMMARY), rates_of(9.0, 9.0, 9.0, 1e9, 1.0), gpu=True)
    assert misfits(stages, 1e9, 1e9, 1e9) == [] == misfits(stages, 0, 0, 1e9)
    memory, gpu = misfits(stages, 3000, 1e9, 1e9), misfits(stages, 1e9, 900, 1e9)
    assert any(line.startswith("extract needs") and "extract.batch_size" in line for line in memory)
    assert all("of the GPU" in line and "extract.batch_size" in line for line in gpu) and gpu
    assert "results_root" in misfits(stages, 1e9, 1e9, 10)[0]


def test_rates() -> None:
    assert extraction_rate(100, 100, 1, gpu=False) == 50
    assert extraction_rate(100, 300, 2, gpu=True) == 200
    assert rate(lambda: iter(range(3)), 3) > 0


def test_forecast_beside_fact(tmp_path: Path) -> None:
    for rule, name, line in (
        ("fit", "a", "10.0\t500.0\t9.5"),
        ("fit", "b", "20.0\t700.0\t30"),
        ("extract", "x/y", "0.2\t-\tNA"),
    ):
        path = tmp_path / rule / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"s\tmax_rss\tcpu_time\n{line}\n")
    recorded = read_benchmarks(tmp_path)
    assert recorded == {"fit": [(10.0, 9.5, 500.0), (20.0, 30.0, 700.0)], "extract": [(0.2, 0.0, 0.0)]}
    facts = add_up(recorded)
    assert facts == {"fit": Fact(2, 30.0, 39.5, 700.0), "extract": Fact(1, 0.2, 0.0, 0.0)}
    stages = [Forecast("fit", 4, 80.0, 900.0, 0.0, 5.0), Forecast("ingest", 1, None, 10.0, 0.0, 1.0)]
    rows = compare(stages, facts)
    assert [row["rule"] for row in rows] == ["fit", "ingest", "extract"]
    assert rows[0]["ratio"] == pytest.approx(80 * 2 / 4 / 30)
    assert "ratio" not in rows[1] and rows[1]["seconds"] is None
    assert total(rows)["seconds_run"] == pytest.approx(30.2) and total(rows)["processor_run"] == 39.5
    lines = render(cost_table(rows))
    assert lines[-1].startswith("total") and "1.33" in lines[-1] and "–" in lines[2]
    assert len({len(line) for line in lines}) == 1
    (tmp_path / "bad").mkdir()
    with pytest.raises(IntegrityError, match="no benchmark"):
        read_benchmarks(tmp_path / "bad")


def test_forecast_stands_beside_fact() -> None:
    stages = [Forecast("fit", 2, 60.0, 900.0, 0.0, 5.0), Forecast("report", 1, 2.0, 800.0, 0.0, 5.0)]
    table = cost_table(compare(stages, FACTS))
    assert table.planned
    cells = {stage: dict(zip(table.headings, line, strict=True)) for stage, line in table.lines}
    assert list(cells) == ["fit", "report", "make-demo", "total"]
    assert cells["fit"] == {
        "jobs": "2", "forecast": "1 min 0 s", "took": "30.0 s", "forecast / took": "2.00", "processor": "55.0 s",
        "jobs run": "2", "disk": "5 MB", "memory asked for": "900 MB", "largest job": "700 MB",
    }  # fmt: skip
    assert (cells["make-demo"]["forecast"], cells["report"]["took"]) == ("–", "–")
    assert (cells["total"]["took"], cells["total"]["forecast / took"]) == ("2 min 0 s", "2.00")


def test_without_a_plan_there_is_only_what_was_taken() -> None:
    table = cost_table(compare([], FACTS))
    assert not table.planned and table.headings == ["took", "processor", "jobs run", "largest job"]
    assert cost_table([]) is None


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0.04, 59.9, 59.96)] == ["0.0 s", "59.9 s", "1 min 0 s"]
    assert [duration(seconds) for seconds in (119.7, 125.0)] == ["2 min 0 s", "2 min 5 s"]


def test_the_command_measures_and_forecasts(settings: config.Config, tmp_path: Path) -> None:
    rows = []
    (tmp_path / "data").mkdir()
    for i in range(12):
        path = tmp_path / f"data/{i}.png"
        Image.fromarray(np.random.default_rng(i).integers(256, size=(70, 90, 3), dtype=np.uint8)).save(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        rows.append({"image_id": i, "path": path.name, "split": "train", "width": 90, "height": 70, "sha256": digest})
    texts = pa.table({"sentence_id": range(12), "image_id": range(12), "text": ["a red dog", "a blue cat"] * 6})
    tables = {"images": pa.Table.from_pylist(rows, schema=IMAGES), "sentences": texts}
    tables |= {"documents": DOCUMENTS.empty_table(), "boxes": BOXES.empty_table()}
    counts = {"images": {"given": 12, "kept": 12, "rejected": 0, "duplicate": 0}}
    counts["sentences"] = counts["images"]
    write_manifest(tmp_path / "manifest", tmp_path / "data", [tables], [], counts, 1000)
    small = yaml.safe_load((tmp_path / "planned.yaml").read_text())
    small["encoders"][0]["architecture"] = "squeezenet1_1"
    (tmp_path / "planned.yaml").write_text(yaml.safe_dump(small))
    said = make_stage("plan", tmp_path, "--sample", 8, "--config", tmp_path / "planned.yaml")
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["rates"]["images"]["net"] > 0 and plan["dims"] == {"net": 512}
    assert plan["rates"]["starts"] > plan["rates"]["starts_light"] > 0 and 0 < plan["rates"]["share"] <= 1
    assert plan["text_dims"]["tfidf"] < 20
    assert "extract" in said and "total" in said

    before = (tmp_path / "plan.json").read_bytes()
    (tmp_path / "benchmarks/fit").mkdir(parents=True)
    (tmp_path / "benchmarks/fit/ncca.tsv").write_text("s\tcpu_time\tmax_rss\n125.0\t1.0\t10\n")
    said = make_stage("plan", tmp_path, "--sample", 8, "--compare")
    assert "forecast / took" in said and "2 min 5 s" in said and (tmp_path / "plan.json").read_bytes() == before


def test_doctor_finds_what_is_here_and_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stages.operations.doctor import command

    monkeypatch.setattr("pipeline.plan.machine.try_kernels", lambda: {"SKYLAKEX": 2.0e11, "HASWELL": 1.9e11})
    result = CliRunner().invoke(command, ["--folder", str(tmp_path / "not/yet")])
    for word in ("processor", "BLAS", "torch", "faiss", "memory", "disk", "[cluster]"):
        assert word in result.output
    lines = [line for line in result.output.splitlines() if "BLAS" not in line]  # one for each that is loaded
    assert len(lines) <= 34
    assert free_disk(tmp_path / "not/yet") > 0
    monkeypatch.setattr("pipeline.plan.machine.NEEDED", ("numpy", "no-such-thing"))
    monkeypatch.setattr("pipeline.plan.machine.EXTRAS", {"extra": ("no-such-extra", "a purpose")})
    missing = {finding.what: finding for finding in examine(tmp_path)}
    assert missing["libraries"].mark == "MISS" and missing["libraries"].remedy == "pip install no-such-thing"
    assert missing["[extra]"].remedy.startswith("pip install 'jointspace[extra]'")
    result = CliRunner().invoke(command, ["--folder", str(tmp_path)])
    assert result.exit_code == 1


def test_doctor_notices_two_distributions_of_faiss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("faiss-cpu", "faiss-gpu-cu12"):
        folder = tmp_path / f"{name.replace('-', '_')}-1.14.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.14\n")
        (folder / "top_level.txt").write_text("faiss\n")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = [finding for finding in examine(tmp_path) if finding.what == "faiss" and finding.mark == "MISS"]
    assert "faiss-cpu" in found.found and "faiss-gpu-cu12" in found.found
    assert "faiss-cpu" in found.remedy and "faiss-gpu-cu12" in found.remedy


def test_doctor_says_which_kernels_are_faster_than_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.runtime.cpu_flags", lambda: frozenset({"avx512f"}))
    monkeypatch.setenv("OPENBLAS_CORETYPE", "SKYLAKEX")
    for haswell, mark, remedy in ((1.05, "ok", None), (1.2, "note", "export OPENBLAS_CORETYPE=HASWELL")):
        rates = {"SKYLAKEX": 1e11, "HASWELL": haswell * 1e11}
        monkeypatch.setattr("pipeline.plan.machine.try_kernels", lambda rates=rates: rates)
        (found,) = machine.check_kernels()
        assert (found.mark, found.remedy) == (mark, remedy) and "SKYLAKEX 100" in found.found
    monkeypatch.setattr("pipeline.runtime.cpu_flags", frozenset)
    assert not list(machine.check_kernels())


def test_kernels_are_tried_each_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "ROUNDS", 1)
    monkeypatch.setattr(kernels, "CORE_TYPES", ("HASWELL", "NEHALEM"))
    monkeypatch.setattr(kernels, "TRIAL", kernels.TRIAL.replace("0.3", "0.01"))
    rates = kernels.try_kernels()
    assert set(rates) == {"HASWELL", "NEHALEM"} and all(rates.values())


def test_text_encoders_are_measured_without_a_manifest(settings: config.Config, tmp_path: Path) -> None:
    found, dims = measure_texts(Run(tmp_path / "planned", settings), ["a dog runs", "a cat sleeps"] * 4)
    assert found["encoded"]["tfidf"] > 0 and dims["tfidf"] > 0


def test_counts_are_those_of_the_stages() -> None:
    assert needs.BLOCK_ROWS == accumulation.BLOCK_ROWS
    assert needs.COPIES == pieces.WORKING_COPIES
    assert tuple((least, max(lists)) for least, lists in reversed(candidates.LARGE)) == needs.LISTS
    assert (forecasts.QUERIES, forecasts.SET_QUERIES) == (build.QUERIES, build_gallery.SET_QUERIES)


def test_a_collection_that_is_not_there_is_forecast_by_the_rates_of_a_plan(
    settings: config.Config, tmp_path: Path
) -> None:
    """A million images at 100 a second, in 16 jobs of 65 shards, each with two processes that start in two seconds."""
    rates = vars(rates_of(100.0, 100.0, 1000.0, 1e11, 2.0))
    about = {"rates": rates, "dims": {"net": 2048}, "text_dims": {"tfidf": 300}, "gpu": False, "inputs": {}}
    publish_record(Layout(tmp_path / "planned").plan.path, about)
    given = ["--config", str(tmp_path / "planned.yaml"), "--images", "1e6", "--sentences", "2", "--workers"]
    shown = {}
    for workers in ("1", "10", "64"):
        result = CliRunner().invoke(command, [*given, workers])
        assert result.exit_code == 0, result.output
        shown[workers] = {line.split()[0]: re.split("  +", line) for line in result.stdout.splitlines()}
    assert [shown[workers]["extract"][1:4] for workers in shown] == [
        ["16", "167 min 44 s", "167 min 44 s"], ["16", "167 min 44 s", "20 min 58 s"],
        ["16", "167 min 44 s", "10 min 29 s"],
    ]  # fmt: skip
    assert shown["64"]["ingest"][1:4] == ["1", "166 min 41 s", "166 min 41 s"]  # which no worker shares
    assert "index" in shown["64"] and not (tmp_path / "planned/config.yaml").exists()
    assert isinstance(CliRunner().invoke(command, ["--images", "1e6"]).exception, UsageError)
