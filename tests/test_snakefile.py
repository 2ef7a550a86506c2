"""Tests which show that the Snakefile reports mistakes in one sentence, and works in folders of any name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from forked_programs import environment
from workflow import DATA, NETWORK, RESULTS, ROOT, TINY, snakemake

from stages.catalogue import declared


def test_a_key_that_is_given_twice_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text("seed: 1\nseed: 2\n")
    result = snakemake(tmp_path, "all", "-n", "--configfile", "twice.yaml", check=False)
    assert result.returncode != 0
    assert "the key seed is given twice" in result.stdout + result.stderr


def test_a_separate_rule_extracts_for_the_study(tmp_path: Path) -> None:
    """All encoders of the run are precomputed, so only the rule `extract_more` remains, which extracts with the
    encoders of the study.
    """
    given = {"name": "given", "kind": "imported", "path": "given.npy"}
    other = {"name": "other", **NETWORK}
    values = TINY | {"encoders": [given], "study": {**TINY["study"], "encoders": [other]}}
    (tmp_path / "given.yaml").write_text(yaml.safe_dump(values))
    made = f"{RESULTS}/features/other/part-00000.json"
    assert "rule extract_more:" in snakemake(tmp_path, made, "-n", "--configfile", "given.yaml").stdout


@pytest.mark.slow
def test_the_checkout_may_be_in_a_folder_of_any_name(tmp_path: Path) -> None:
    """The name of the folder has spaces, a quote and braces. The folder has the Snakefile, and the environment with the
    programs that the rules call.
    """
    (tmp_path / "a b'c {x}").mkdir()
    checkout = tmp_path / "a b'c {x}/checkout"
    venv = tmp_path / "a b'c {x}/venv"
    checkout.symlink_to(ROOT)
    venv.symlink_to(sys.prefix)
    values = TINY | {"demo": {"train": 2, "dev": 1, "test": 1, "weak": 0}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(values))
    python = venv / Path(sys.executable).relative_to(sys.prefix)
    program = [python, "-m", "snakemake", "--configfile", "tiny.yaml", "-s", checkout / "Snakefile", "--cores", "2"]
    program.append(f"{DATA}/demo.json")
    result = subprocess.run(program, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert len(list((tmp_path / DATA / "images").iterdir())) == 4
    assert not (tmp_path / "PWNED").exists()


def test_profiles_hold_options_of_snakemake() -> None:
    from snakemake.cli import get_argument_parser

    known = {option.removeprefix("--") for option in get_argument_parser()._option_string_actions}
    used = {key for path in (ROOT / "profiles").glob("*/config.yaml") for key in yaml.safe_load(path.read_text())}
    assert set() < used <= known


def test_every_output_of_the_report_has_its_caption() -> None:
    named = {stage.shown[0] for stage in declared().values() if stage.shown}
    assert named == {path.stem for path in (ROOT / "docs/captions").glob("*.rst")}


def test_contributing_shows_the_rulegraph(tmp_path: Path) -> None:
    """The graph of CONTRIBUTING.md has only arrows that Snakemake draws for the demo before a run. All other arrows
    that Snakemake draws follow from the arrows of the graph.
    """
    drawn = snakemake(tmp_path, "--rulegraph", "mermaid-js").stdout
    names = dict(re.findall(r"(id\d+)\[(\w+)\]", drawn))
    whole = {(names[a], names[b]) for a, b in re.findall(r"(id\d+) --> (id\d+)", drawn)}
    shown = set(re.findall(r"^    (\w+) --> (\w+)$", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.M))
    assert shown <= whole and closure(shown) == closure(whole)


def closure(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return `arrows` and all arrows that follow from them: if (a, b) and (b, d) are arrows, (a, d) follows."""
    while more := {(a, d) for a, b in arrows for c, d in arrows if b == c} - arrows:
        arrows = arrows | more
    return arrows
