"""Which folders a configuration may name: any that Snakemake can carry, and no run inside of a collection."""

from pathlib import Path

import pytest
import yaml

from pipeline import config
from pipeline.errors import UsageError


def load(folder: Path, **values: object) -> config.Config:
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    return config.load(folder / "config.yaml")


@pytest.mark.parametrize("path", ["a b'c", "x;touch PWNED #", 'we$b&d|e(g)[h]*?!%^=+,:@`"\\y ünï', "../there", "."])
def test_odd_names_are_taken(path: str, tmp_path: Path) -> None:
    assert load(tmp_path, weights_root=path, data_root=f"{path}/data").data_root == f"{path}/data"


@pytest.mark.parametrize("path", ["a{b}", "a}", "<x>", "a\nb", "a\x1b[0m", "a\x85", "~/x", "-x", " x", "x ", ""])
@pytest.mark.parametrize("key", ["data_root", "weights_root", "results_root"])
def test_what_snakemake_cannot_carry_is_named(key: str, path: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"config\.yaml: {key}: .*(must not|does not allow)"):
        load(tmp_path, **{key: path})


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("collection.takedown", {"collection": {"takedown": "{list}.txt"}}),
        ("collection.files.train", {"collection": {"files": {"train": "a\nb"}}}),
        ("text.vocabulary", {"text": {"vocabulary": "{x}.json"}}),
        ("language_text.file", {"language_text": {"file": "~/x"}}),
        ("parse.conllu", {"parse": {"conllu": "a{b}"}}),
        ("parse.treebank.dev", {"parse": {"treebank": {"dev": "a{b}"}}}),
        ("phrases.names", {"phrases": {"names": "<n>"}}),
    ],
)
def test_files_of_rules_are_looked_at_too(key: str, values: dict, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=key):
        load(tmp_path, **values)


def places(folder: Path, results: str, data: str) -> dict[str, str]:
    return {"name": "holiday", "results_root": str(folder / results), "data_root": str(folder / data)}


@pytest.mark.parametrize(
    ("results", "data"),
    [("", "holiday"), ("", "holiday/photographs"), ("x", "x/../x/holiday"), ("link", "holiday"), ("", "link/holiday")],
)
def test_a_collection_in_the_runs_own_folder_is_refused(results: str, data: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="data_root: .* lies in the run's own folder .*choose another results_root"):
        load(tmp_path, **places(tmp_path, results, data))


@pytest.mark.parametrize(
    ("results", "data"), [("a", ""), ("a", "a"), ("a/b/c", "a/b"), ("link/a", "a"), ("a", "link/a")]
)
def test_a_run_in_the_collection_is_refused(results: str, data: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="results_root: the run's folder .* would lie in the collection"):
        load(tmp_path, **places(tmp_path, results, data))


@pytest.mark.parametrize(("results", "data"), [("a", "b"), ("a", "a/holiday-photographs"), ("a", "holiday"), ("", "x")])
def test_beside_each_other_is_well(results: str, data: str, tmp_path: Path) -> None:
    load(tmp_path, **places(tmp_path, results, data))


def test_the_demo_lies_beside_its_run() -> None:
    settings = config.load(None)
    assert (settings.results_root, settings.name, settings.data_root) == ("results", "demo", "results/demo-collection")
