"""The configuration: complete defaults, and errors that help."""

import pytest

from pipeline.config import Config, default_path, load, merge, read_mapping, validate
from pipeline.errors import UsageError


def defaults() -> dict:
    return read_mapping(default_path())


def test_defaults_are_complete_and_every_key_has_a_comment() -> None:
    assert isinstance(load(), Config)
    for line in default_path().read_text().splitlines():
        is_section = line.endswith(":") and not line.startswith(" ")
        assert "#" in line or is_section or not line, line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fit": {"rigde": [1]}}, "unknown key fit.rigde; legal here: dimensions, image_ridge"),
        ({"encoders": [{"nme": "x"}]}, "unknown key encoders.0.nme; did you mean name? legal here: weights, resize"),
        ({"encoders": [{"name": "x"}]}, "key encoders.0.architecture is missing"),
        ({"models": ["nca"]}, "unknown model nca; did you mean ncca? there are"),
        ({"transfer": {"features": 301}}, "features: must be even for the rule cosine-sine"),
        ({"text": {"size": "many"}}, "key text.size: "),
        ({"text": {"size": 0}}, "greater than 0, not 0"),
        ({"variants": {"v": {"model": "ncca", "encoders": ["e"]}}}, "variants.v: unknown encoder e; there are"),
        ({"variants": {"ncca": {"model": "cca", "encoders": []}}}, "ncca is the name of a registered model"),
        ({"encoders": [{"name": "x", "architecture": "y", "weights": "file"}]}, "give `file` exactly when"),
        ({"encoders": [{"name": "x", "architecture": "pooled"}]}, "give `of` exactly when `architecture` is pooled"),
        ({"encoders": [{"name": "x", "architecture": "pooled", "of": "y"}]}, "encoder x: y is not in regions.encoders"),
        ({"generators": ["mrnn"], "describe": {"boxes": True}}, "add squeezenet-boxes to regions.encoders"),
        (
            {"generators": ["mrnn-regions"], "regions": {"encoders": ["squeezenet-boxes"]}},
            "mrnn_regions.snippets: not a model in models with a vector for every word (none); name one",
        ),
        ({"generators": ["mrn"]}, "generators: unknown generator mrn; did you mean mrnn? there are nearest, "),
        (
            {"generators": ["mrnn", "nearest"], "evaluate": {"generators": ["nearest"]}},
            "evaluate.generators: nearest does not say how probable a sentence is; name one of mrnn, lbl",
        ),
        ({"evaluate": {"generators": ["lbl"]}}, "evaluate.generators: lbl is not among generators; add it there"),
        ({"generator_variants": {"mrnn": {"generator": "lbl"}}}, "mrnn is the name of a registered generator"),
        (
            {"generator_variants": {"v": {"generator": "mrnn", "encoders": ["e"]}}},
            "generator_variants.v: unknown encoder e; there are squeezenet-boxes",
        ),
        ({"generator_variants": {"v": {"generator": "mrnn", "encoders": []}}}, "v: name at least one encoder"),
        (
            {"generator_variants": {"v": {"generator": "mrnn", "factors": 3}}},
            "unknown key generator_variants.v.factors; legal here: optimiser, learning_rate, ",
        ),
        (
            {"generator_variants": {"v": {"generator": "mrnn", "cell": "gruu"}}},
            "key generator_variants.v.cell: must be 'rnn', 'relu', 'gru' or 'lstm', not 'gruu'",
        ),
        ({"generator_variants": {"v": {"generator": "mrnn", "seeds": [2, 2]}}}, "generator_variants: seeds has a seed"),
        ({"variants": 3}, "key variants: "),
        ({"models": ["nca-refit"]}, "unknown model nca-refit; did you mean ncca-refit? there are"),
        ({"models": ["nca-csls"]}, "unknown model nca-csls; did you mean ncca-csls? there are"),
        (
            {"models": ["two-csls"], "ensembles": {"two": {"members": ["ncca", "bow"]}}},
            "two-csls: the scores of an ensemble are not scaled; give -csls to its members",
        ),
        (
            {"variants": {"a-refit": {"model": "ncca"}}},
            "variants: a-refit ends in a suffix with a meaning",
        ),
    ],
)
def test_mistakes_are_named_in_one_sentence(change: dict, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        validate(merge(defaults(), change))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refit_means_what_its_row_does_and_needs_the_rows_that_it_comes_from() -> None:
    encoders = [{"name": name, "architecture": "alexnet"} for name in ("a", "b")]
    change = {
        "encoders": encoders,
        "variants": {
            "small": {"model": "ncca", "encoders": ["a"]},
            "fine": {"model": "ncca-refined", "encoders": ["a"], "seed": 3},
        },
        "ensembles": {"two": {"members": ["fine", "bow"]}},
        "models": ["two-refit"],
    }
    config = validate(merge(defaults(), change))
    assert config.model("fine-refit") == config.model("fine") and config.model("two-refit").spec.name == "ensemble"
    assert config.start("fine-refit") == "small-refit" and config.start("fine") == "small"
    assert config.members("two-refit") == ("fine-refit", "bow-refit") and config.members("bow-refit") == ()
    needed = {"fine", "bow", "small", "two"}
    assert set(config.every_model()) == needed | {f"{name}-refit" for name in needed}
    assert config.judged_splits("two") == ("dev", "test") and config.judged_splits("two-refit") == ("test",)
    scaled = validate(merge(defaults(), change | {"models": ["fine-csls-refit"]}))
    assert scaled.refitted("fine-csls-refit") == "fine-csls" and scaled.scaled("fine-csls-refit") == "fine-refit"
    assert scaled.scaled("fine") is None and scaled.start("fine-csls") is None
    rows = {"fine-csls-refit", "fine-csls", "fine-refit", "fine", "small-refit", "small"}
    assert set(scaled.every_model()) == rows
    with pytest.raises(UsageError, match="fine starts from a model of ncca on the same encoders; add one to variants"):
        validate(merge(defaults(), change | {"variants": {"fine": change["variants"]["fine"]}, "models": ["fine"]}))


def test_a_variant_has_any_hyperparameter_of_its_model() -> None:
    config = validate(
        merge(
            defaults(),
            {
                "gru": {"margin": 0.4, "epochs": 9},
                "variants": {
                    "vsepp": {"model": "gru", "loss": "ranking", "negatives": "hardest", "margin": 0.2},
                    "gong": {
                        "model": "ncca", "training": "sae", "fit": {"eigenvalue_power": [4]},
                        "transfer": {"rule": ["paper"], "features": 300},
                    },
                    "kernels": {"model": "kcca", "landmarks": 50, "fit": {"dimensions": [8]}},
                },
            },
        )
    )  # fmt: skip
    vsepp, gru, gong = (config.model(name) for name in ("vsepp", "gru", "gong"))
    assert (vsepp.settings.loss, vsepp.settings.negatives, vsepp.settings.margin) == ("ranking", "hardest", 0.2)
    assert (gru.settings.loss, gru.settings.margin) == ("info-nce", 0.4) and vsepp.settings.epochs == 9
    assert gong.fit.eigenvalue_power == (4,) and gong.fit.image_ridge == config.fit.image_ridge
    assert (gong.transfer.rule, gong.transfer.features) == (("paper",), 300)
    assert config.model("sae").transfer == config.transfer
    assert config.model("kernels").settings.landmarks == 50 and config.model("kcca").settings.landmarks == 2000


def test_hubness_correction_and_refitting_are_options_of_a_variant() -> None:
    change = {
        "variants": {
            "a": {"model": "ncca", "csls": True},
            "b": {"model": "ncca", "refit": True},
            "c": {"model": "ncca", "csls": True, "refit": True},
        },
        "ensembles": {"both": {"members": ["a", "ncca"]}},
    }
    config = validate(merge(defaults(), change))
    assert (config.scaled("a"), config.refitted("a")) == ("a-plain", None)
    assert (config.scaled("b"), config.refitted("b")) == (None, "b-plain")
    assert (config.scaled("c"), config.refitted("c")) == ("c-plain-refit", "c-plain-csls")
    assert (config.scaled("a-refit"), config.refitted("a-refit")) == ("a-plain-refit", "a")
    assert (config.scaled("b-csls"), config.refitted("b-csls")) == ("b", "b-plain-csls")
    assert config.model("c") == config.model("c-plain")
    assert config.members("both-refit") == ("a-refit", "ncca-refit")
    config = validate(merge(defaults(), change | {"models": ["c"]}))
    assert set(config.every_model()) == {"c", "c-plain-csls", "c-plain-refit", "c-plain"}
    assert config.judged_splits("c") == ("test",) and config.judged_splits("a") == ("dev", "test")
    for name, message in {
        "a-csls": "a-csls: the variant has this ending as an option; say a",
        "ncca-plain": "unknown model ncca-plain; .*there are",
    }.items():
        with pytest.raises(UsageError, match=message):
            config.model(name)
    with pytest.raises(UsageError, match="both: b has learned from dev, .*; take b-plain, and name both-refit"):
        validate(merge(defaults(), {**change, "ensembles": {"both": {"members": ["b", "ncca"]}}}))


def test_a_file_is_laid_over_the_defaults(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nfit: {dimensions: [7]}\nencoders: [{name: a, architecture: alexnet, layer: fc7}]\n")
    config = load(path)
    assert (config.name, config.fit.dimensions) == ("mine", (7,))
    assert config.fit.image_ridge == load().fit.image_ridge
    assert config.encoder("a").resize == defaults()["encoder_defaults"]["resize"]
    assert config.model("ncca").encoders == ("a",)


def test_an_ensemble_has_the_default_grid_or_its_own(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("ensembles: {a: {members: [bow, lstm]}, b: {members: [bow, lstm], weights: [1]}}\n")
    config = load(path)
    assert config.ensembles["a"].weights == tuple(defaults()["ensemble_defaults"]["weights"])
    assert config.ensembles["b"].weights == (1,)


def test_a_row_has_the_runs_seed_or_its_own(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("seed: 4\nvariants: {again: {model: lstm, seed: 0}}\n")
    config = load(path)
    assert [config.model(name).seed for name in ("lstm", "sae", "again")] == [4, 4, 0]
    with pytest.raises(UsageError, match="unknown model lstn; did you mean lstm[?] there are ridge, .*, again"):
        config.model("lstn")


@pytest.mark.parametrize("seeds", [[7, 0], ["7", "0"]], ids=["numbers", "as Snakemake's --config gives them"])
def test_a_variant_with_seeds_is_a_model_a_seed_wherever_it_is_named(seeds: list) -> None:
    change = {
        "models": ["gru", "tree", "tree-csls-refit", "all"],
        "variants": {"tree": {"model": "sdtrnn", "margin": 3.0, "seeds": seeds}},
        "ensembles": {"all": {"members": ["gru", "tree-csls"]}},
    }
    config = validate(merge(defaults(), change))
    of_seeds = [f"tree-seed{seed}{ending}" for ending in ("", "-csls-refit") for seed in (7, 0)]
    assert list(config.models) == ["gru", *of_seeds, "all"]
    assert config.ensembles["all"].members == ("gru", "tree-seed7-csls", "tree-seed0-csls")
    assert [config.model(name).seed for name in of_seeds[:2]] == [7, 0]
    assert config.model("tree-seed7").settings.margin == 3.0
    with pytest.raises(UsageError, match="unknown model tree;"):
        config.model("tree")


def test_phrases_are_ranked_by_each_seed_of_a_variant() -> None:
    variants = {"deep": {"model": "dvsa", "seeds": [7, 0]}}
    change = {"models": ["deep", "gru"], "variants": variants, "phrases": {"models": ["gru", "deep"]}}
    change |= {"regions": {"encoders": ["squeezenet-boxes"]}}
    config = validate(merge(defaults(), change))
    assert config.phrase_splits(("test",)) == [(name, "test") for name in ("gru", "deep-seed7", "deep-seed0")]


def test_a_variant_of_a_generator_has_its_own_settings_and_is_one_a_seed() -> None:
    change = {
        "generators": ["mrnn", "plain", "lbl"],
        "generator_variants": {"plain": {"generator": "mrnn", "cell": "relu", "seeds": [5, 0]}},
        "evaluate": {"generators": ["plain"]},
        "language_defaults": {"clip": 7},
        "mrnn": {"dimensions": 33},
        "seed": 2,
    }
    config = validate(merge(defaults(), change))
    assert config.generators == ("mrnn", "plain-seed5", "plain-seed0", "lbl")
    assert config.evaluate.generators == ("plain-seed5", "plain-seed0")
    ours, plain = config.generator("mrnn"), config.generator("plain-seed5")
    assert (ours.spec.name, ours.seed, ours.settings.cell) == ("mrnn", 2, "lstm")
    assert (plain.spec.name, plain.seed, plain.settings.cell) == ("mrnn", 5, "relu")
    assert plain.settings.dimensions == 33 and plain.settings.clip == 7 and plain.encoders == ("squeezenet-boxes",)
    assert ("plain-seed0-perplexity", "test", "all-sentences") in config.evaluations()


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([1, 1], "variants: seeds has a seed twice; name each once"),
        ([-1], "seed: must be greater"),
        (3, "seeds: must be a list"),
    ],
)
def test_seeds_that_cannot_be_are_named(seeds: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        validate(merge(defaults(), {"models": ["tree"], "variants": {"tree": {"model": "sdtrnn", "seeds": seeds}}}))


DEEP = 1_000_000


@pytest.mark.parametrize("text", ["a: [", "just words", "- 1\n- 2\n", "[" * DEEP + "]" * DEEP, "- " * DEEP])
def test_files_that_are_no_configuration_are_named(tmp_path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match="mine.yaml"):
        load(path)
    with pytest.raises(UsageError, match="gone.yaml does not exist"):
        load(tmp_path / "gone.yaml")


def test_numbers_inside_of_a_section_may_come_as_text_from_the_command_line() -> None:
    values = merge(read_mapping(default_path()), {"csls": {"weight": ["0.5"]}})
    config = validate(values)
    assert config.csls.weight == (0.5,)


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("architecture: alexnet", "kind: network, architecture: alexnet"),
        ("architecture: standard", "kind: standard"),
        ("architecture: pooled, of: net", "kind: pooled, of: net"),
    ],
)
def test_a_kind_of_encoder_may_be_told_by_its_architecture(architecture: str, kind: str, tmp_path) -> None:
    path, found = tmp_path / "config.yaml", []
    for one in (architecture, kind):
        path.write_text(
            f"regions: {{encoders: [net]}}\nencoders: [{{name: net, architecture: vgg16}}, {{name: a, {one}}}]"
        )
        found.append(load(path).encoder("a"))
    assert found[0].spec is found[1].spec and found[0].decisive() == found[1].decisive()
    assert "kind" not in found[0].decisive()
