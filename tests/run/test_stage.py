"""Tests of declared stages: their rules, their commands, and the parts of their shards."""

import re
from pathlib import Path

import pytest
from synthetic_run import make_run, make_stage, open_run, write_config

from pipeline.compute.mapreduce import IMAGES_PER_CHUNK, split_into_chunks
from pipeline.config.loading import load
from pipeline.errors import UsageError
from pipeline.run.jobs import Jobs
from pipeline.run.layout import Layout, Shards
from pipeline.run.run import Run, shards_of_part
from pipeline.run.stage import Stage
from pipeline.storage.json_files import read_json
from stages.catalogue import declared
from stages.cli import cli

ROOT = Path(__file__).parents[2]
STAGES = declared()


@pytest.mark.parametrize(("shards", "parts"), [(0, 2), (5, 1), (5, 8), (1000, 64)])
def test_parts_and_chunks_contain_every_shard_once(shards: int, parts: int) -> None:
    ranges = [shards_of_part(shards, part, parts) for part in range(parts)]
    assert [number for numbers in ranges for number in numbers] == list(range(shards))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    assert [number for chunk in split_into_chunks(shards, 4096) for number in chunk] == list(range(shards))


@pytest.mark.parametrize(
    ("shards", "shard_size", "expected_chunks", "expected_size"),
    [(1, 4096, 1, 32), (32, 4096, 1, 32), (33, 4096, 2, 32), (245, 4096, 8, 32), (2048, 4096, 64, 32),
     (2049, 4096, 33, 64), (4096, 4096, 64, 64), (1000, 1000, 8, 132), (65, 1 << 18, 33, 2)],
)  # fmt: skip
def test_chunks_have_about_131072_images_until_there_are_64_chunks(
    shards: int, shard_size: int, expected_chunks: int, expected_size: int
) -> None:
    found = split_into_chunks(shards, shard_size)
    assert len(found) == expected_chunks
    assert all(len(chunk) == expected_size for chunk in found[:-1]) and 1 <= len(found[-1]) <= expected_size


def test_moments_of_a_million_images_take_at_most_two_gigabytes_for_every_shard_size() -> None:
    """A model with weak text needs the moments of two kinds of pairs, here of 4,096 x 3,000 dimensions. There is a file
    of moments for each chunk and for their sum. Moments are in float32, and only half of a symmetric matrix is stored.
    A chunk has less than one shard more than 131,072 images, so a killed job repeats little."""
    kinds = 2
    file_bytes = 4 * (4096 + 3000) ** 2 // 2
    for shard_size in (*range(100, 2 * IMAGES_PER_CHUNK, 37), 43_691, 65_537, 83_000, 124_999):
        found = split_into_chunks(-(-(10**6) // shard_size), shard_size)
        assert kinds * (len(found) + 1) * file_bytes <= 2e9, shard_size
        assert len(found[0]) * shard_size < IMAGES_PER_CHUNK + shard_size


def test_every_rule_belongs_to_a_declared_stage() -> None:
    """Each rule in the Snakefile and in stages/rules takes its inputs, threads and memory from the declared stage with
    the name of the rule. The rules `all` and `extract_more` are exceptions. Rules that are not in these files are
    generated from the declarations."""
    text = "\n".join(path.read_text() for path in (ROOT / "Snakefile", *ROOT.glob("stages/rules/*.smk")))
    own = re.findall(r"^ *rule (\w+):", text, flags=re.M)
    assert 5 < len(own) == len(set(own)) and {*own} - {"all", "extract_more"} <= STAGES.keys()
    for pattern in (
        r'^ +input: reads\("(\w+)"',
        r'^ +threads: (?:STAGES\[|threads\()"(\w+)"',
        r'mem_mb=memory\("(\w+)"\)',
    ):
        assert {*own} - {"all", "extract_more"} == set(re.findall(pattern, text, flags=re.M)), pattern


def test_every_stage_is_a_command_with_its_names_and_no_two_jobs_write_one_artefact() -> None:
    for stage in STAGES.values():
        made = stage.outputs(Layout(Path("run")), *(f"<{name}>" for name in stage.names))
        paths = [str(output.folder if isinstance(output, Shards) else output.path) for output in made]
        assert all(f"<{name}>" in path for path in paths for name in stage.names), stage.name
        assert stage.sharded == any(isinstance(one, Shards) for one in made), stage.name
        command = cli.get_command(None, stage.command)
        arguments = [one.name for one in command.params if one.param_type_name == "argument"]
        assert tuple(arguments) == stage.names and command.help, stage.name
        assert ("part" in {one.name for one in command.params}) == stage.sharded, stage.name


def test_an_unknown_name_lists_the_known_names() -> None:
    config = load()
    assert STAGES["embed"].select(config, ["sae"]) == [("sae",)]
    assert STAGES["embed"].select(config, []) == [("cca",), ("ncca",), ("sae",)]
    with pytest.raises(UsageError, match="the configuration has no model gru. The known names are cca, ncca, sae"):
        STAGES["embed"].select(config, ["gru"])
    with pytest.raises(UsageError, match="has no split weak. The known names are train, dev, test"):
        STAGES["evaluate"].select(config, ["ncca", "weak"])
    with pytest.raises(UsageError, match="pool-regions: the configuration has no encoder to make"):
        STAGES["pool_regions"].select(config, [])


def test_omitted_names_select_the_wanted_choices() -> None:
    config = load()
    evaluate = STAGES["evaluate"]
    assert evaluate.select(config, []) == config.evaluations()
    assert evaluate.select(config, ["ncca", "train"]) == [
        ("ncca", "train", "all-sentences"), ("ncca", "train", "first-sentence"),
    ]  # fmt: skip
    assert evaluate.select(config, ["ncca", "train", "first-sentence"]) == [("ncca", "train", "first-sentence")]
    asked = [names for names in config.evaluations() if names[0] == "ncca"]
    assert evaluate.select(config, ["ncca"]) == asked and len(asked) < 6


def test_a_folder_that_is_not_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the folder of a run.*Name the folder.*`jointspace run CONFIG`"):
        make_stage("embed", tmp_path, "ncca")


def test_ingest_depends_on_the_files_of_its_collection(tmp_path: Path) -> None:
    """A changed photo changes the fingerprint, so Snakemake runs ingest again. collections/test_inventory.py tests all
    kinds of changes."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/1.jpg").write_bytes(b"one")
    config = open_run(tmp_path / "run", {"data_root": str(tmp_path / "photos"), "demo": {"generate": False}}).config
    before = STAGES["ingest"].depends(config)
    assert STAGES["ingest"].depends(config) == before
    (tmp_path / "photos/1.jpg").write_bytes(b"other")
    assert STAGES["ingest"].depends(config) != before


def test_parts_are_made_separately_and_existing_shards_are_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_config(run, {"parts": 2})
    folder = run / "text/tfidf"
    make_stage("encode_sentences", run, "--part", 1)
    assert [path.name for path in sorted(folder.glob("*.h5"))] == ["shard-00002.h5"]
    times = {folder / "shard-00002.h5": (folder / "shard-00002.h5").stat().st_mtime_ns}
    make_stage("encode_sentences", run)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    told = [read_json(folder / f"part-{number:05d}.json")["files"].keys() for number in range(2)]
    assert told == [{"shard-00000.h5.json", "shard-00001.h5.json"}, {"shard-00002.h5.json"}]
    (folder / "shard-00000.h5").write_bytes(b"damaged")
    make_stage("encode_sentences", run, "--part", 0)
    assert (folder / "shard-00000.h5").read_bytes() != b"damaged"
    make_stage("encode_sentences", run, "--part", 1, "--force")
    assert {path: path.stat().st_mtime_ns for path in times} != times
    with pytest.raises(UsageError, match="chunk of shards 2 does not exist. The chunks of .* are numbered 0 to 1"):
        make_stage("encode_sentences", run, "--part", 2)


def test_the_fingerprint_follows_the_version_the_keys_and_the_inputs(tmp_path: Path) -> None:
    from dataclasses import replace

    run = make_run(tmp_path)
    stage = STAGES["encode_sentences"]

    def fingerprint(declared: Stage, number: int = 0) -> str:
        return Jobs(Run(run)).shard_job(declared, ("tfidf",), number).provenance.fingerprint

    first = fingerprint(stage)
    assert fingerprint(stage) == first != fingerprint(stage, 1)
    newer = replace(stage, version=stage.version + 1)
    config = Run(run).config
    assert fingerprint(newer) != first
    # Snakemake reruns a job if the value of `depends` has changed.
    assert newer.depends(config, "tfidf") != stage.depends(config, "tfidf")
    assert fingerprint(replace(stage, keys=lambda config, encoder: {"a": 1})) != first
    assert fingerprint(replace(stage, columns=(*stage.columns, "splits"))) != first
