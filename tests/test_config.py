"""Tests of configurations: defaults, names of models and generators, and messages about mistakes."""

import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.keys import OWN, default_yaml, rows
from pipeline.config.loading import Config, default_path, load, merge, read_mapping, validate
from pipeline.config.section import as_name
from pipeline.errors import UsageError

ROOT = Path(__file__).parents[1]
CONFIGS = [*sorted((ROOT / "config").rglob("*.yaml")), ROOT / "profiles/dask/slurm.yaml"]
ONE = "encoders: [{name: net, architecture: alexnet}]"
TWO = "encoders: [{name: net, architecture: alexnet}, {name: b, architecture: alexnet}]"


def read(text: str) -> Config:
    return validate(yaml.safe_load(text))


def fault(values: Any) -> str:
    """Validate a configuration, and return the message about its mistakes, which must be one line. Return "" if the
    configuration is valid.
    """
    try:
        validate(values)
    except UsageError as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


def test_the_file_of_defaults_is_up_to_date() -> None:
    assert default_path().read_text() == default_yaml()


def test_every_key_has_a_sentence_and_the_file_of_defaults_changes_nothing() -> None:
    assert [row.path for row in rows() if row.default is not None and not row.sentence] == []
    assert load(default_path()) == load() == validate({})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_configuration_of_the_repository_is_valid(path: Path) -> None:
    assert load(path).every_model()


def test_a_misspelt_key_is_named_in_every_section_with_the_nearest_legal_one() -> None:
    sections = {row.path[:-1] for row in rows() if len(row.path) > 1 and not {"NAME"} & set(row.path)}
    sections = [path for path in sections if not any(part.endswith("[]") for part in path)]
    assert len(sections) > 30
    for path in sections:
        key = next(row.path[-1] for row in rows() if row.path[:-1] == path)
        values: Any = {f"{key}x": 1}
        for part in reversed(path):
            values = {part: values}
        assert f"unknown key {'.'.join(path)}.{key}x. Did you mean {key}?" in fault(values)


@pytest.mark.parametrize("name", [name for name, spec in OWN.items() if spec.defaults])
def test_a_section_inherits_the_defaults_that_it_does_not_override(name: str) -> None:
    spec = OWN[name]
    defaults = load()
    below = spec.defaults
    change = {"precision": "float32", "patience": 77, "checkpoint_seconds": 9}
    found = getattr(validate({below: change, name: {"checkpoint_seconds": 8}}), name)
    assert (found.precision, found.patience, found.checkpoint_seconds) == ("float32", 77, 8)
    assert found.epochs == getattr(defaults, name).epochs
    assert getattr(validate(merge(read_mapping(default_path()), {below: change})), name).patience == 77


def test_a_configuration_names_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nfit: {dimensions: [7]}\ntext: {size: 9}\n"
        "encoders:\n"
        "  - {name: a, architecture: alexnet, layer: fc7}\n  - {name: b, kind: timm, architecture: x, weights: null}\n"
        "text_encoders: [{name: t, kind: tf-idf, idf: false}]\n"
    )
    config = load(path)
    assert (config.name, config.fit.dimensions, config.fit.image_ridge) == ("mine", (7,), load().fit.image_ridge)
    assert (config.encoder("a").resize, config.encoder("b").resize, config.encoder("b").weights) == (256, None, "hub")
    own = config.text_encoder("t")
    assert (own.size, own.idf, own.min_count) == (9, False, load().text.min_count)
    assert config.model("ncca").encoders == ("a", "b") and "sae" in config.variants


def test_numbers_may_come_as_text_from_the_command_line() -> None:
    assert validate({"hubness": {"weight": ["0.5"]}, "seed": "3"}).hubness.weight == (0.5,)


def test_a_variant_has_any_hyperparameter_of_its_model() -> None:
    config = read(
        "seed: 4\ngru: {margin: 0.4, epochs: 9}\nvariants:\n"
        "  vsepp: {model: gru, loss: ranking, negatives: hardest, seed: 0}\n"
        "  gong: {model: ncca, training: sae, fit: {eigenvalue_power: [4]}, transfer: {rule: [paper], features: 300}}\n"
    )
    vsepp, gru, gong = (config.model(name) for name in ("vsepp", "gru", "gong"))
    assert (vsepp.settings.loss, vsepp.settings.margin, vsepp.settings.epochs) == ("ranking", 0.4, 9)
    assert (gru.settings.loss, gru.seed, vsepp.seed) == ("info-nce", 4, 0)
    assert gong.fit.eigenvalue_power == (4,) and gong.fit.image_ridge == config.fit.image_ridge
    assert (gong.transfer.rule, gong.transfer.features) == (("paper",), 300)


FINE = """
encoders: [{name: a, architecture: alexnet}, {name: b, architecture: alexnet}]
variants:
  small: {model: ncca, encoders: [a]}
  fine: {model: ncca-refined, encoders: [a], seed: 3}
  fine-scaled: {model: ncca-refined, encoders: [a], seed: 3, csls: true, refit: true}
  gru-csls: {model: gru, csls: true}
ensembles:
  two: {members: [fine, gru-csls]}
  two-refit: {members: [fine, gru-csls], refit: true}
"""


def test_corrected_models_and_refits_are_made_of_the_same_model_without_them() -> None:
    config = read(f"models: [fine-scaled, two-refit]\n{FINE}")
    assert config.uncorrected("fine-scaled") == "fine-refit" and config.refitted("fine-scaled") == "fine-csls"
    assert config.uncorrected("fine-csls") == "fine" == config.refitted("fine-refit")
    assert config.model("fine-scaled") == config.model("fine") == config.model("fine-refit")
    assert config.start("fine-refit") == "small-refit" and config.start("fine") == "small"
    assert config.start("fine-csls") is None and config.uncorrected("fine") is None
    assert config.refitted("two-refit") == "two" and config.members("two") == ("fine", "gru-csls")
    assert config.members("two-refit") == ("fine-refit", "gru-csls-refit")
    assert config.uncorrected("gru-csls-refit") == "gru-refit" and config.refitted("gru-csls-refit") == "gru-csls"
    added = {"fine-refit", "fine-csls", "small-refit", "gru-csls-refit", "gru-refit", "gru"}
    written = {"fine-scaled", "two-refit", "two", "fine", "small", "gru-csls"}
    assert set(config.every_model()) == written | added
    asked = read("models: [{name: x, model: ncca, hubness: auto, refit: true}]")
    assert asked.uncorrected("x") == "ncca-refit" and asked.refitted("x") == "ncca-auto"
    assert config.judged_splits("two") == ("dev", "test") and config.judged_splits("two-refit") == ("test",)


def test_a_training_may_start_from_the_base_of_a_variant_that_is_written_later() -> None:
    config = read(
        f"{TWO}\nmodels: [r]\nvariants:\n"
        "  r: {model: ncca-refined, encoders: [net], refit: true}\n"
        "  q: {model: ncca, encoders: [net], csls: true}\n"
    )
    assert config.start("r") == "q-plain-refit" and config.uncorrected("q") == "q-plain"
    assert config.every_model() == ["r", "r-plain", "q-plain-refit", "q-plain"]


def test_members_of_a_refitted_ensemble_are_refits_of_the_members_of_the_ensemble() -> None:
    """A member x of an ensemble becomes x-refit in the refitted ensemble. This is also true if the variant x is equal
    to the registered model `gru`, because the weights of an ensemble are stored by the names of its members.
    """
    config = read(
        "variants: {x: {model: gru}, y: {model: ncca, csls: true}}\n"
        "ensembles: {e: {members: [x, y, gru]}, f: {members: [x, y, gru], refit: true}}\nmodels: [f]"
    )
    assert config.refitted("f") == "e" and config.members("f") == ("x-refit", "ncca-csls-refit", "gru-refit")
    assert tuple(config.refitted(member) for member in config.members("f")) == config.members("e") == ("x", "y", "gru")


def test_models_may_hold_variants_and_ensembles_in_full() -> None:
    config = read(
        "models: [ncca, {name: x, model: ncca, csls: true}, {name: both, members: [x, gru]}]\n"
        "ensembles: {other: {members: [gru, lstm]}}"
    )
    assert config.models == ("ncca", "x", "both") and config.uncorrected("x") == "ncca"
    assert config.ensemble("both").weights == config.ensemble("other").weights
    assert "name" in fault({"models": [{"model": "ncca"}]}) or "models.0" in fault({"models": [{"model": "ncca"}]})


SEEDED = """
models: [ncca, deep, deep-csls, all]
encoders: [{name: eyes, architecture: squeezenet1_1}]
regions: {encoders: [eyes]}
variants:
  deep: {model: dvsa, margin: 3.0, seeds: SEEDS}
  deep-csls: {model: dvsa, margin: 3.0, seeds: SEEDS, csls: true}
ensembles: {all: {members: [gru, deep-csls]}}
phrases: {models: [deep]}
generators: [plain, lbl]
generator_variants: {plain: {generator: mrnn, cell: relu, seeds: SEEDS}}
evaluate: {generators: [plain]}
"""


@pytest.mark.parametrize("seeds", ["[7, 0]", "['7', '0']"], ids=["numbers", "as Snakemake's --config gives them"])
def test_a_variant_with_seeds_becomes_one_variant_per_seed_in_every_list(seeds: str) -> None:
    config = read(SEEDED.replace("SEEDS", seeds))
    assert config.models == ("ncca", "deep-seed7", "deep-seed0", "deep-csls-seed7", "deep-csls-seed0", "all")
    assert config.ensembles["all"].members == ("gru", "deep-csls-seed7", "deep-csls-seed0")
    assert config.uncorrected("deep-csls-seed7") == "deep-seed7" and config.model("deep-seed7").seed == 7
    assert config.phrases.models == ("deep-seed7", "deep-seed0")
    assert config.generators == ("plain-seed7", "plain-seed0", "lbl") and config.generator("plain-seed0").seed == 0
    assert ("plain-seed0-perplexity", "test", "all-sentences") in config.evaluations()


def test_all_problems_are_listed_and_inherited_values_only_where_they_are_given() -> None:
    said = fault(yaml.safe_load("text: {size: many}\nfitt: 1\nseed: -1\ntrain_defaults: {epochs: 0, batchsize: 3}"))
    assert "5 problems" in said
    for part in ("key text.size", "fitt. Did you mean fit?", "key seed", "key train_defaults.epochs", "batch_size?"):
        assert part in said
    said = fault(yaml.safe_load(f"{TWO}\nmodels: [dvsa, sc-nlm]\ngenerators: [nearst]"))
    assert "unknown model sc-nlm" in said and "unknown generator nearst. Did you mean nearest?" in said


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("models: [nca]", ["unknown model nca", "Did you mean ncca?"]),
        ("variants: {v: {model: gru, marign: 3}}", ["variants.v.marign", "margin?"]),
        ("variants: {v: {model: ncca, fit: {dimensions: [x]}}}", ["variants.v.fit.dimensions.0"]),
        ("variants: {v: {model: gru, fit: {search: grid}}}", ["variants.v.fit.search has no effect on gru"]),
        ("variants: {v: {model: ncca, encoders: [e]}}", ["variants.v", "unknown encoder e", "colours"]),
        ("variants: {v: {model: ensemble}}", ["variants.v.model"]),
        ("variants: {v: {model: gru, seeds: [2, 2]}}", ["variants.v.seeds", "twice"]),
        ("variants: {x y: {model: gru}}", ["variants"]),
        ("models: [b]\nensembles: {b: {members: [ncca, ridge]}}", ["ridge does not compare by cosine"]),
        ("variants: {x: {model: ncca, csls: perhaps}}", ["csls must be true or false", "perhaps"]),
        (f"models: [two-x]\n{FINE}".replace("two-refit: {members: [fine,", "two-x: {members: [fine-scaled,"), ["dev"]),
        ("models: [x]\nvariants: {x: {model: cca, csls: true}}", ["x: cca does not compare by cosine"]),
        ("encoders: [{name: net, architecture: resnet5}]", ["encoders.0 (net)", "Did you mean resnet50?"]),
        ("encoders: [{name: net, architecture: resnet18, layer: fc7}]", ["(net)", "does not have the layer fc7"]),
        ("encoders: [{name: net, architecture: vit_b_16}]", ["(net)", "does not have an activation map"]),
        ("encoders: [{name: net, architecture: alexnet, weights: file}]", ["(net)", "`file`"]),
        ("encoders: [{name: net, architecture: alexnet, resize: 100, crop: 200}]", ["(net)", "Raise resize"]),
        ("data_root: s3://bucket/photos", ["data_root", "must be a path on this machine"]),
        ("text_encoders: [{name: tokens, kind: tf-idf}]", ["text encoder tokens"]),
        ("text_encoders: [{name: one, kind: tf-idf, centre: mean}]", ["text encoder one", "centre"]),
        ("text_encoders: [{name: one, kind: transformers}]", ["key text_encoders.0.architecture is missing"]),
        ("text_encoders: [{name: one, kind: tf-idf, weight: 0}]", ["no text encoder has a positive weight"]),
        (f"{ONE}\nregions: {{encoders: [net], proposals: faster-rcnn, detector: {{architecture: fasterrcnn_res}}}}",
         ["regions.detector", "fasterrcnn_resnet50_fpn?"]),
        (f"{TWO}\nmodels: [x]\nvariants: {{x: {{model: ncca-refined, encoders: [b]}}}}", ["x starts from a model"]),
        ("models: [x]\nvariants: {x: {model: lstm, training: sae}}", ["x: lstm supports training target, not sae"]),
        ("models: [dvsa]", ["dvsa needs regions"]),
        ("generators: [sc-nlm]", ["sc-nlm", "language_text.treebank"]),
        ("generators: [lbl]\nmodels: [lstm]", ["describe.space: unknown model ncca"]),
        ("generators: [mrnn-regions]", ["mrnn_regions.snippets"]),
        ("ensembles: {b: {members: [ncca, gru], weights: [0]}}", ["ensembles.b.weights", "positive"]),
        ("device: gpu", ["key device"]),
        ("collection: {format: foldr}", ["key collection.format", "'folder'"]),
    ],
)  # fmt: skip
def test_each_mistake_has_its_message(text: str, parts: list[str]) -> None:
    said = fault(yaml.safe_load(text))
    assert all(part in said for part in parts), said


@pytest.mark.parametrize("path", ["a{b}", "<x>", "a\nb", "a\x00b", "~/x", "-x", " x", ""])
@pytest.mark.parametrize(
    "key", ["data_root", "results_root", "collection.takedown", "parse.treebank.dev", "text.vocabulary"]
)
def test_paths_that_snakemake_cannot_handle_are_named(key: str, path: str) -> None:
    values: Any = path
    for part in reversed(key.split(".")):
        values = {part: values}
    assert f"{key}: " in fault(values)


@pytest.mark.parametrize(
    ("results", "data", "key"),
    [
        ("", "holiday", "data_root"), ("x", "x/../x/holiday/in", "data_root"), ("link", "holiday", "data_root"),
        ("a", "", "results_root"), ("a/b/c", "a/b", "results_root"), ("link/a", "a", "results_root"),
        ("a", "b", ""), ("a", "a/holiday-photographs", ""), ("", "x", ""),
    ],
)  # fmt: skip
def test_a_run_and_its_collection_may_not_contain_each_other(results: str, data: str, key: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    places = {"name": "holiday", "results_root": str(tmp_path / results), "data_root": str(tmp_path / data)}
    said = fault(places)
    assert said.startswith(f"configuration: {key}: ") if key else not said


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name: one\nseed: 1\nname: two\n", "line 3: the key name is given twice"),
        ("fit: {dimensions: [1], 'dimensions': [2]}", "line 1: the key dimensions is given twice"),
        ("a: [", ""), ("just words", ""), ("- 1\n", ""), ("a: \x00", ""), ("? [1, 2]\n: 3", ""),
        ("a: !!python/object/apply:os.getcwd []", ""), ("seed: " + "9" * 5000, ""),
    ],
)  # fmt: skip
def test_a_file_that_is_not_a_configuration_is_named(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"mine\.yaml.*{re.escape(part)}"):
        load(path)
    path.write_bytes("name: é".encode("latin-1"))
    with pytest.raises(UsageError, match="mine.yaml is not UTF-8"):
        load(path)
    with pytest.raises(UsageError, match=r"min\.yaml does not exist. Did you mean .*mine\.yaml"):
        load(tmp_path / "min.yaml")


def test_anchors_and_merged_mappings_are_legal(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("variants:\n  one: &one {model: ncca, training: joint}\n  two: {<<: *one, training: sae}\n")
    assert load(path).model("two").training == "sae" and load(path).model("one").training == "joint"


def test_roots_are_taken_of_features_without_negative_values() -> None:
    network = {"name": "network", "architecture": "resnet50"}
    clip = {"name": "clip", "kind": "open_clip", "architecture": "ViT-B-32", "weights": "laion2b_s34b_b79k"}
    config = validate({"encoders": [network, clip]})
    assert config.image_steps(["network"]) == ("sqrt", "l2") and config.image_steps(["clip"]) == ("l2",)
    assert config.image_steps(["network", "clip"]) == (("sqrt", "l2"), ("l2",))
    said = validate({"encoders": [network, clip], "image_view": {"normalise": []}})
    assert said.image_steps(["network", "clip"]) == ()
    inner = {"name": "inner", "kind": "timm", "architecture": "resnet50", "layer": "layer2"}
    assert validate({"encoders": [inner]}).image_steps(["inner"]) == ("l2",)
    heavy = validate({"encoders": [network | {"weight": 1.5}, clip]})
    assert heavy.image_steps(["network", "clip"]) == (("sqrt", "l2", "times 1.5"), ("l2",))
    assert heavy.encoder("network").decisive() == config.encoder("network").decisive(), "the features are the same"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("collection: {reject_limit: 0,02}", "key collection: 2 is read as the name of a key."),
        ("7: seven", "7 is read as the name of a key."),
        ("'[odd': 1", "unknown key [odd. The legal keys are name, data_root"),
        ("encoders: []", "key encoders needs at least 1 value, but has 0"),
        ("ensembles: {e: {members: [ncca]}}", "key ensembles.e.members needs at least 2 values, but has 1"),
        ("ensembles: {e: {members: [ncca, 'a b']}}", "key ensembles.e.members.1: must be text of the pattern"),
        ("collection: {decode_seconds: '2,5'}", 'must be a number, with a point before the decimals, not "2,5"'),
        ("seed: many", 'key seed: must be a whole number, not "many"'),
    ],
)
def test_a_message_uses_the_words_of_yaml_and_not_of_pydantic(text: str, message: str) -> None:
    said = fault(yaml.safe_load(text))
    assert message in said
    assert not re.search(r"Tuple|Keys should|validation|Input|parse", said)


@pytest.mark.parametrize("method", ["inverted-softmax", "dual-softmax"])
def test_removed_hubness_methods_name_the_remaining_ones(method: str) -> None:
    said = fault(yaml.safe_load(f"variants: {{a: {{model: ncca, hubness: {method}}}}}"))
    assert f"hubness: {method} was removed" in said
    assert "Write hubness: csls, or choose another of csls, nnn, sinkhorn and auto" in said


@pytest.mark.parametrize("csls", ["true", "false"])
def test_two_choices_of_a_hubness_correction_are_refused(csls: str) -> None:
    said = fault(yaml.safe_load(f"variants: {{a: {{model: ncca, csls: {csls}, hubness: sinkhorn}}}}"))
    assert f"csls: {csls} and hubness: sinkhorn both choose the hubness correction" in said


@pytest.mark.parametrize("deviation", ["0", "-0.2", "1e-30"])
def test_a_standard_deviation_that_would_make_infinite_features_is_refused(deviation: str) -> None:
    text = f"encoders: [{{name: a, architecture: alexnet, std: [0.2, {deviation}, 0.2]}}]"
    assert "key encoders.0.std.1: must be greater than or equal to 0.001" in fault(yaml.safe_load(text))


def _nested_aliases(levels: int) -> str:
    lists = [f"k{level}: &k{level} [{', '.join([f'*k{level - 1}'] * 9)}]" for level in range(1, levels)]
    return "\n".join(["k0: &k0 [1, 2]", *lists])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_nested_aliases(40), "more than 100,000 values with all aliases expanded"),
        ("name: &a [b, {c: *a}]", "line 1: an alias contains itself"),
        ("name: x\nfit: &f\n  <<: *f", "line 2: an alias contains itself"),
    ],
)
def test_aliases_that_never_end_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "aliases.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(message)):
        load(path)


def test_aliases_of_an_ordinary_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "aliases.yaml"
    path.write_text("fit: {image_ridge: &ridges [0.5, 2]}\nvariants: {a: {model: ncca, fit: {text_ridge: *ridges}}}")
    config = load(path)
    assert config.fit.image_ridge == (0.5, 2)
    assert config.variants["a"].fit == {"text_ridge": [0.5, 2]}


def test_an_error_of_yaml_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broke.yaml"
    path.write_text("name: demo\nmodels: [ncca\nseed: 1\n")
    with pytest.raises(UsageError, match=rf"in {path}, line 2, column 9.* in {path}, line 3") as failure:
        load(path)
    assert "unicode string" not in str(failure.value)


@pytest.mark.parametrize(
    ("text", "name"), [("Ümläut photos", "Umlaut-photos"), ("ﬁne café", "fine-cafe"), ("写真", "run"), (".a", "a")]
)
def test_names_lose_their_accents(text: str, name: str) -> None:
    assert as_name(text) == as_name(unicodedata.normalize("NFD", text)) == name
