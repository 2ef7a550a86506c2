"""What a configuration cannot do is said when it is read, and costs no import of torch."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.config import default_path, load, merge, read_mapping, validate
from pipeline.config.architectures import DETECTORS, HIDDEN_LAYERS, NETWORKS, WITHOUT_MAPS
from pipeline.config.registry.models import MODELS
from pipeline.errors import UsageError

CONFIGS = Path(__file__).parents[1] / "config"
ONE = "encoders: [{name: net, architecture: alexnet}]"
"""A run of one encoder, whole images."""
TWO = "encoders: [{name: net, architecture: alexnet}, {name: b, architecture: alexnet}]"
REGIONS = f"{ONE}\nregions: {{encoders: [net]}}"
"""The same, and regions of it."""


def read(text: str):
    return validate(merge(read_mapping(default_path()), yaml.safe_load(text)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "encoders: [{name: net, architecture: resnet5}]",
            "encoder net: unknown architecture resnet5; did you mean resnet50? torchvision has alexnet, ",
        ),
        (
            "study: {encoders: [{name: net, architecture: resnet5}]}",
            "encoder net: unknown architecture resnet5; did you mean resnet50?",
        ),
        (
            "encoders: [{name: net, architecture: resnet18, layer: fc7}]",
            "encoder net: resnet18 has no layer fc7, only AlexNet and VGG do; set layer to average",
        ),
        (
            "encoders: [{name: net, architecture: vit_b_16}]",
            "encoder net: vit_b_16 has no map of activations to average; choose a convolutional network",
        ),
        (
            "encoders: [{name: net, kind: standard, architecture: alexnet}]",
            "encoder net: kind standard has no architecture alexnet; leave one of them out",
        ),
        (
            "encoders: [{name: net, kind: network, architecture: standard}]",
            "encoder net: unknown architecture standard; ",
        ),
        ("encoders: [{name: net, kind: pooled}]", "encoder net: give `of` exactly when `architecture` is pooled"),
        (
            "encoders: [{name: net, architecture: standard, weights: finetuned}]",
            "encoder net: kind standard has no weights finetuned; give none as `weights`",
        ),
        (
            "study: {encoders: [{name: net, architecture: alexnet, weights: finetuned}]}",
            "study.encoders: net is made by another stage; give it among encoders",
        ),
        (
            "encoders: [{name: net, architecture: alexnet}, {name: net, architecture: alexnet}]",
            "two encoders of one name among net, net",
        ),
        (
            "text_encoders: [{name: one, kind: tf-idf}, {name: one, kind: averaged}]",
            "two text encoders of one name among one, one",
        ),
        (
            "text_encoders: [{name: tokens, kind: tf-idf}]",
            "text_encoders: tokens is the name of something else among a run's texts; choose another",
        ),
        (
            "text_encoders: [{name: labels, kind: tf-idf}]",
            "text_encoders: labels is the name of something else among a run's texts; choose another",
        ),
        (
            "text_encoders: [{name: Word-Vectors.safetensors, kind: tf-idf}]",
            "text_encoders: Word-Vectors.safetensors is the name of something else among a run's texts",
        ),
        (
            "text_encoders: [{name: one, kind: transformers, transformers: {weights: openai}}]",
            "unknown key text_encoders.0.transformers.weights; legal here: architecture",
        ),
        ("text_encoders: [{name: one, kind: [tf-idf]}]", "text_encoders.0.kind: "),
        ("encoders: [{name: one, kind: {}}]", "encoders.0.kind: "),
        ("study: {fit: {text_weights: {nope: [2]}}}", "study: fit.text_weights has weights of nope"),
        ("study: {fit: {text_weights: {tfidf: [0]}}}", "study: no text encoder has a positive weight; give one to tfi"),
        (
            "models: [ncca-recurrent]\ntext_encoders: [{name: one, kind: tf-idf}, {name: two, kind: fisher}]",
            "ncca-recurrent starts from what each word adds to a sentence's vector, and those of two are not sums",
        ),
        (
            "text_encoders: [{name: one, kind: tf-idf, centre: mean}]",
            "text encoder one: sparse vectors are not centred; set centre to none",
        ),
        (
            "text_encoders: [{name: one, kind: tf-idf, weight: 0}]",
            "no text encoder has a positive weight; give one to one",
        ),
        (
            "variants: {other: {model: ncca, text_encoders: [two]}}",
            "variants.other: unknown text encoder two; there are tfidf",
        ),
        (
            "encoders: [{name: net, architecture: standard}]\nregions: {encoders: [net]}",
            "regions.encoders: net describes whole images only; name a network",
        ),
        (
            "encoders: [{name: net, architecture: alexnet, layer: fc7}]\n"
            "regions: {encoders: [net], features: roi-align}",
            "regions.features: roi-align needs layer average, not fc7 of net",
        ),
        (
            f"{ONE}\nregions: {{encoders: [net], score: classifier}}",
            "regions.score: finetune makes the classifier; set weights of net to finetuned",
        ),
        (
            f"{ONE}\nregions: {{encoders: [net], proposals: faster-rcnn, detector: {{architecture: fasterrcnn_res}}}}",
            "regions.detector: unknown detector fasterrcnn_res; did you mean fasterrcnn_resnet50_fpn?",
        ),
        ("evaluate: {splits: [weak]}", "key evaluate.splits.0: must be 'train', 'dev' or 'test', not 'weak'"),
        (
            f"{TWO}\nmodels: [fine]\nvariants: {{fine: {{model: ncca-refined, encoders: [b]}}}}",
            "models: fine starts from a model of ncca on the same encoders; add one to variants",
        ),
        ("models: [cca-csls]", "cca-csls: cca does not compare by cosine, and cannot be scaled; take ncca"),
        (
            "models: [both]\nensembles: {both: {members: [ncca, ridge]}}",
            "both: ridge does not compare by cosine; leave it out",
        ),
        (
            f"{REGIONS}\nmodels: [both]\nensembles: {{both: {{members: [dvsa, defrag]}}}}",
            "both joins members that score by words or by positive products, but not both",
        ),
        (
            "models: [x]\nvariants: {x: {model: kcca, training: joint}}",
            "x: kcca learns from target pairs, not by training joint; take ncca",
        ),
        (
            "models: [x]\nvariants: {x: {model: lstm, training: sae}}",
            "x: lstm learns from target pairs, not by training sae; take ncca",
        ),
        (
            "models: [x-refit]\nvariants: {x: {model: cca, training: sae}}",
            "training sae stacks a normalized CCA; give it to model ncca",
        ),
        (
            "reproduce: {in_place_of: {other: vgg19 fc7}}",
            "reproduce.in_place_of: other is not among encoders; name one",
        ),
        ("models: [dvsa]", "dvsa needs regions; name their encoders in regions.encoders"),
        (
            f"{TWO}\nmodels: [hmlstm]\nregions: {{encoders: [b]}}",
            "hmlstm maps images and regions alike; add net to regions.encoders",
        ),
        (
            f"{ONE}\nmodels: [hmlstm]\nregions: {{encoders: [net], dimensions: 8}}",
            "hmlstm maps images and regions alike; set regions.dimensions to null",
        ),
        (
            f"{REGIONS}\nmodels: [hmlstm]\nhmlstm: {{negatives: sampled}}",
            "hmlstm contrasts within the batch; set its loss to info-nce or ranking, negatives to all",
        ),
        (
            f"{REGIONS}\nmodels: [dvsa]\nindex: {{on_disk: true}}",
            "dvsa is multi-vector: its lists stay in memory; set index.on_disk to false",
        ),
        (
            "generators: [sc-nlm]",
            "sc-nlm needs parts of speech; name a CoNLL-U file in language_text.treebank",
        ),
        ("generators: [lbl]\nmodels: [lstm]", "describe.space: ncca is not among models (lstm); add it"),
        (
            "generators: [nearest]\nnearest: {by: joint-image}\nmodels: [cca]",
            "describe.space: ncca is not among models (cca); add it",
        ),
        (
            "generators: [mnlm]\ndescribe: {space: cca}",
            "describe.space: cca has no cosine of an image and words; take one such as ncca",
        ),
        (
            "models: [sdtrnn]\nparse: {engine: spacy}",
            "parse.treebank.train is null; name a CoNLL-U file, or set parse.pipeline",
        ),
        ("device: gpu", "key device: must be auto, cpu, cuda or cuda:N, not 'gpu'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert message in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text",
    [
        f"{REGIONS}\nmodels: [dvsa]",
        f"{REGIONS}\nmodels: [hmlstm]",
        "models: [kcca, lstm-csls, sae-refit]",
        "models: [cca]\ngenerators: [mrnn, nearest]",
        "models: [x]\nvariants: {x: {model: ridge, training: joint}}",
        "models: [sdtrnn]\nparse: {engine: spacy, pipeline: en_core_web_sm}",
        "variants: {unused: {model: kcca, training: sae}}",
        "encoders: [{name: net, architecture: alexnet, layer: fc6}]",
        "device: cuda:3",
        "models: [ncca-recurrent]\ntext_encoders: [{name: one, kind: tf-idf}, {name: two, kind: averaged}]",
        "text_encoder_defaults: {centre: whiten}",
    ],
)
def test_what_can_be_done_is_left_alone(text: str) -> None:
    read(text)


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.name)
def test_the_configurations_that_are_here_can_be_done(path: Path) -> None:
    load(path)


def test_the_listed_networks_are_torchvisions() -> None:
    """Of the torchvision that is installed, which may know more than the list."""
    from torchvision import models

    assert set(NETWORKS) <= set(models.list_models(module=models))
    assert set(DETECTORS) <= set(models.list_models(module=models.detection))


@pytest.mark.parametrize("name", ["alexnet", "vgg11", "resnet18", "mobilenet_v2", "squeezenet1_1", "vit_b_32"])
def test_networks_without_hidden_layers_or_maps_are_told_by_their_names(name: str) -> None:
    """Against the modules: a classifier of three linear layers has two hidden ones; a transformer has no map."""
    import torch
    from torch import nn
    from torchvision import models

    with torch.device("meta"):
        network = models.get_model(name, weights=None)
    linear = sum(isinstance(module, nn.Linear) for module in list(network.children())[-1].modules())
    assert (linear == 3) == name.startswith(HIDDEN_LAYERS)
    assert isinstance(network, models.VisionTransformer) == name.startswith(WITHOUT_MAPS)


@pytest.mark.parametrize("spec", MODELS, ids=lambda spec: spec.name)
def test_a_spec_says_what_its_class_does(spec) -> None:
    model = spec.load()
    assert model.sentence_view == spec.sentences
    assert spec.made_by == "combine" or model.multi_vector == spec.multi_vector
    assert getattr(model, "metric", "inner_product") == spec.metric
    assert not spec.phrases or hasattr(model, "embed_phrases")
    made = {"fit": "fit", "train": "trainer"}.get(spec.made_by)
    assert made is None or hasattr(model, made)
    assert not spec.grid or ("text_ridge" in spec.grid, "eigenvalue_power" in spec.grid) == (
        model.uses_text_ridge,
        model.uses_eigenvalue_power,
    )


def test_reading_a_configuration_imports_nothing_heavy() -> None:
    heavy = ["torch", "torchvision", "faiss", "h5py", "snakemake", "scipy", "numpy"]
    code = f"import sys; from pipeline.config import load; load(); print([n for n in {heavy} if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CONFIGS.parent)
    assert found.stdout.strip() == "[]"
