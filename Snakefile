# From photographs and sentences to a searchable index: one rule a stage, one command a rule.
#
#   snakemake all --cores 2                                             the demo, into results/demo
#   snakemake all --cores 2 --configfile config/flickr8k.yaml           a collection of your own
#
# Only this file knows where artefacts lie. A rule's `slice` is its part of the configuration: a changed key
# reruns the rules whose slice holds it, and what depends on them. Jobs are shards, never images.

import json
import os
import sys
from pathlib import Path

import yaml
from snakemake.exceptions import WorkflowError

from pipeline.config import default_path, validate
from pipeline.errors import UsageError
from pipeline.models import TRAINED


configfile: str(default_path())


try:
    CONFIG = validate(config)
except UsageError as error:
    raise WorkflowError(str(error))

RUN = f"{CONFIG.results_root}/{CONFIG.name}"
RESOLVED = f"{RUN}/config.yaml"
JOINTSPACE = f"{Path(sys.executable).with_name('jointspace')} --threads {{threads}}"
ROWS = list(CONFIG.models)
STARTS = ["ncca", *(name for name, variant in CONFIG.variants.items() if variant.model == "ncca")]
MODELS = list(dict.fromkeys([*ROWS, *STARTS]))
TRAINED_ROWS = [row for row in MODELS if CONFIG.row(row).model in TRAINED]
ENCODERS = [encoder.name for encoder in CONFIG.encoders]
FINETUNED = [encoder.name for encoder in CONFIG.encoders if encoder.weights == "finetuned"]
STUDY = f"{RUN}/study"
STUDY_ENCODERS = [*ENCODERS, *(encoder.name for encoder in CONFIG.study.encoders)]
STUDY_DOCUMENTS = ["all", "title", "tags", "description", *CONFIG.study.noise]
DEMO = f"{CONFIG.data_root}/demo.json"


wildcard_constraints:
    shard=r"\d{5}",
    encoder="|".join(STUDY_ENCODERS),
    row="|".join(MODELS),
    split="train|dev|test",
    protocol="all-sentences|first-sentence",
    documents="|".join(CONFIG.documents),
    sums="moments|study/moments",


def slice_of(*sections, **values):
    """The part of the configuration that a rule depends on, as a string that Snakemake compares."""
    parts = {name: getattr(CONFIG, name) for name in sections}
    parts = {name: part.model_dump() if hasattr(part, "model_dump") else part for name, part in parts.items()}
    return json.dumps({**parts, **values}, sort_keys=True, default=str)


def learned_from(wildcards):
    """What `prepare-encoder` learns from: the train split for standard features, nothing for a network."""
    standard = CONFIG.encoder(wildcards.encoder).architecture == "standard"
    return [f"{RUN}/manifest/manifest.json"] if standard else []


def encoder_slice(encoder):
    """What `prepare-encoder` depends on; how standard features are made is nothing to a network."""
    unused = {"standard"} if encoder.architecture != "standard" else set()
    return slice_of("weights_root", "seed", encoder=encoder.model_dump(exclude=unused))


def fit_slice(row):
    """What `fit` of a row depends on: the grids that its model and its training use."""
    transfer, own = CONFIG.transfer_of(row.training), CONFIG.own_section(row.model)
    return slice_of("fit", "seed", row=row.model_dump(), transfer=transfer, own=own)


def train_slice(row):
    """What `train` of a row depends on."""
    return slice_of("seed", "image_view", "word_vectors", row=row.model_dump(), own=CONFIG.own_section(row.model))


def summed_encoders(wildcards):
    """The encoders whose features are summed: of a run's own moments, and for the study (only its target) all of them."""
    whole = wildcards.sums == "moments" or "documents" in wildcards.keys()
    return ENCODERS if whole else STUDY_ENCODERS


def summed_features(wildcards):
    """The feature shard of each encoder that `accumulate` sums."""
    names = summed_encoders(wildcards)
    return expand(f"{RUN}/features/{{encoder}}/shard-{wildcards.shard}.h5", encoder=names)


def sums_slice(wildcards, *sections):
    """What moments depend on; those of the study are in folds."""
    if wildcards.sums == "moments":
        return slice_of(*sections)
    return slice_of(*sections, "seed", folds=CONFIG.study.folds, order=CONFIG.study.order)


def sums_options(wildcards):
    """The options of `accumulate` that say what is summed, and into how many folds."""
    folds = 1 if wildcards.sums == "moments" else CONFIG.study.folds
    return " ".join([f"--folds {folds}", *(f"--encoder {name}" for name in summed_encoders(wildcards))])


def collection_files(wildcards):
    """What `ingest` reads: the demo's commit, or the lists that lie in the data root (its images are checked by hash)."""
    if CONFIG.demo.generate:
        return [DEMO]
    if not os.path.isdir(CONFIG.data_root):
        raise WorkflowError(f"data_root {CONFIG.data_root} is not a folder; set it to your collection's")
    lists = (".tsv", ".txt", ".json", ".jsonl", ".csv", ".parquet", ".token")
    by_list = CONFIG.collection.format not in ("text-files", "webdataset")
    files = [e.path for e in os.scandir(CONFIG.data_root) if by_list and e.is_file() and e.name.endswith(lists)]
    return sorted(files) or [CONFIG.data_root]


def shards():
    """The numbers of the manifest's shards, known once `ingest` is done."""
    summary = json.loads(Path(checkpoints.ingest.get().output.summary).read_text())
    return [f"{number:05d}" for number in range(summary["shards"])]


def every_shard(pattern):
    """An input function: `pattern` for every shard, other wildcards as the rule has them."""
    return lambda wildcards: expand(pattern, shard=shards(), **dict(wildcards.items()))


def every_region_shard(wildcards):
    names = CONFIG.regions.encoders
    return expand(f"{RUN}/regions/{{encoder}}/shard-{{shard}}.h5", encoder=names, shard=shards()) if names else []


def features_of(wildcards):
    """The feature shards of the encoders that the row `wildcards.row` uses; all shards, or one."""
    numbers = [wildcards.shard] if "shard" in wildcards.keys() else shards()
    names = CONFIG.row(wildcards.row).encoders
    return expand(f"{RUN}/features/{{encoder}}/shard-{{shard}}.h5", encoder=names, shard=numbers)


def takes_tokens(row):
    """Whether a row reads sentences word by word; all others take tf-idf vectors."""
    model = CONFIG.row(row).model
    return model in TRAINED and model != "ncca-refined"


def sentences_of(wildcards):
    """The sentence shards that the row `wildcards.row` takes; all shards, or one."""
    numbers = [wildcards.shard] if "shard" in wildcards.keys() else shards()
    form = "tokens" if takes_tokens(wildcards.row) else "tfidf"
    return expand(f"{RUN}/text/{form}/shard-{{shard}}.h5", shard=numbers)


def vocabulary_of(wildcards):
    return f"{RUN}/text/{'tokens' if takes_tokens(wildcards.row) else 'vocabulary'}.json"


def start_of(wildcards):
    """The fitted ncca on the same encoders, from which a refinement starts."""
    row = CONFIG.row(wildcards.row)
    if row.model != "ncca-refined":
        return []
    same = [name for name in STARTS if CONFIG.row(name) == row.model_copy(update={"model": "ncca"})]
    if not same:
        raise WorkflowError(f"{wildcards.row} starts from an ncca row on the same encoders; add one to variants")
    return [f"{RUN}/models/{same[0]}/model.json"]


def encoders_of(wildcards):
    return expand(f"{RUN}/encoders/{{encoder}}/model.json", encoder=CONFIG.row(wildcards.row).encoders)


def documents_of(wildcards):
    """The simulated documents that `wildcards.documents` are encoded from; none where they are the collection's own."""
    simulated = CONFIG.documents_named(wildcards.documents).simulate is not None
    return [f"{RUN}/text/simulated/{wildcards.documents}.parquet"] if simulated else []


def auxiliary_of(wildcards):
    """What the row `wildcards.row` needs of the auxiliary set, all shards; nothing where it learns from targets alone."""
    row = CONFIG.row(wildcards.row)
    if row.training == "target":
        return []
    folders = (f"{RUN}/moments/auxiliary/{row.documents}", f"{RUN}/text/documents/{row.documents}")
    return expand("{folder}/shard-{shard}.h5", folder=folders, shard=shards())


def auxiliary_options(wildcards):
    row = CONFIG.row(wildcards.row)
    if row.training == "target":
        return ""
    return f"--auxiliary {RUN}/moments/auxiliary/{row.documents} --documents {RUN}/text/documents/{row.documents}"


onstart:
    os.makedirs(RUN, exist_ok=True)
    Path(RESOLVED).write_text(yaml.safe_dump(dict(config), sort_keys=False))


localrules:
    all,
    gong,


rule all:
    input:
        expand(f"{RUN}/regions/{{encoder}}/sheet.png", encoder=CONFIG.regions.encoders),
        every_region_shard,
        f"{RUN}/evaluation/summary.json",
        f"{RUN}/report/index.html",
        expand(f"{RUN}/index/{{row}}/card.json", row=ROWS),


rule make_demo:
    output:
        DEMO,
    params:
        slice=slice_of("demo"),
    threads: 8
    shell:
        f"{JOINTSPACE} make-demo --config {RESOLVED} --output {CONFIG.data_root}"


checkpoint ingest:
    input:
        collection_files,
    output:
        summary=f"{RUN}/manifest/manifest.json",
        rejects=f"{RUN}/manifest/rejects.jsonl",
        tables=expand(f"{RUN}/manifest/{{table}}.parquet", table=["images", "sentences", "documents", "boxes"]),
    params:
        slice=slice_of("data_root", "collection", "shard_size"),
    threads: 8
    shell:
        f"{JOINTSPACE} ingest --root {CONFIG.data_root} --config {RESOLVED} --output {RUN}/manifest"


rule prepare_encoder:
    input:
        learned_from,
    output:
        f"{RUN}/encoders/{{encoder}}/model.json",
        f"{RUN}/encoders/{{encoder}}/model.safetensors",
    wildcard_constraints:
        encoder="|".join(name for name in STUDY_ENCODERS if name not in FINETUNED) or "(?!)",
    params:
        slice=lambda wildcards: encoder_slice(CONFIG.encoder(wildcards.encoder)),
        manifest=lambda wildcards, input: f"--manifest {RUN}/manifest" if input else "",
    threads: 8
    shell:
        f"{JOINTSPACE} prepare-encoder --name {{wildcards.encoder}} {{params.manifest}} --config {RESOLVED}"
        f" --output {RUN}/encoders/{{wildcards.encoder}}"


rule finetune:
    input:
        f"{RUN}/manifest/manifest.json",
    output:
        f"{RUN}/encoders/{{encoder}}/model.json",
        f"{RUN}/encoders/{{encoder}}/model.safetensors",
        f"{RUN}/encoders/{{encoder}}/classifier.json",
        f"{RUN}/encoders/{{encoder}}/classifier.safetensors",
    wildcard_constraints:
        encoder="|".join(FINETUNED) or "(?!)",
    params:
        slice=lambda wildcards: slice_of(
            "weights_root", "seed", "finetune", encoder=CONFIG.encoder(wildcards.encoder).model_dump(exclude={"standard"})
        ),
    threads: 8
    shell:
        f"{JOINTSPACE} finetune --name {{wildcards.encoder}} --manifest {RUN}/manifest --config {RESOLVED}"
        f" --output {RUN}/encoders/{{wildcards.encoder}}"


rule extract_regions:
    input:
        f"{RUN}/manifest/shards/{{shard}}.json",
        f"{RUN}/manifest/boxes.parquet",
        f"{RUN}/encoders/{{encoder}}/model.json",
    output:
        f"{RUN}/regions/{{encoder}}/shard-{{shard}}.h5",
        f"{RUN}/regions/{{encoder}}/shard-{{shard}}.h5.json",
    params:
        slice=slice_of(
            "weights_root",
            regions=CONFIG.regions.model_dump(exclude={"encoders", "checkpoint_images", "dimensions"}),
            storage=CONFIG.extract.storage,
            precision=CONFIG.extract.precision,
        ),
    threads: 8
    shell:
        f"{JOINTSPACE} extract-regions --manifest {RUN}/manifest --encoder {RUN}/encoders/{{wildcards.encoder}}"
        f" --shard {{wildcards.shard}} --config {RESOLVED} --output {{output[0]}}"


rule show_regions:
    input:
        f"{RUN}/regions/{{encoder}}/shard-00000.h5",
    output:
        f"{RUN}/regions/{{encoder}}/sheet.png",
    shell:
        f"{JOINTSPACE} show-regions {{input}} --manifest {RUN}/manifest --config {RESOLVED} --output {{output}}"


rule extract:
    input:
        f"{RUN}/manifest/shards/{{shard}}.json",
        f"{RUN}/encoders/{{encoder}}/model.json",
    output:
        f"{RUN}/features/{{encoder}}/shard-{{shard}}.h5",
        f"{RUN}/features/{{encoder}}/shard-{{shard}}.h5.json",
    params:
        slice=slice_of(storage=CONFIG.extract.storage, precision=CONFIG.extract.precision),
    threads: 8
    shell:
        f"{JOINTSPACE} extract --manifest {RUN}/manifest --encoder {RUN}/encoders/{{wildcards.encoder}}"
        f" --shard {{wildcards.shard}} --config {RESOLVED} --output {{output[0]}}"


rule build_vocabulary:
    input:
        f"{RUN}/manifest/manifest.json",
    output:
        f"{RUN}/text/vocabulary.json",
    params:
        slice=slice_of("text"),
    shell:
        f"{JOINTSPACE} build-vocabulary --manifest {RUN}/manifest --config {RESOLVED} --output {{output}}"


rule encode_sentences:
    input:
        f"{RUN}/manifest/shards/{{shard}}.json",
        vocabulary=f"{RUN}/text/vocabulary.json",
    output:
        f"{RUN}/text/tfidf/shard-{{shard}}.h5",
        f"{RUN}/text/tfidf/shard-{{shard}}.h5.json",
    shell:
        f"{JOINTSPACE} encode-sentences --manifest {RUN}/manifest --shard {{wildcards.shard}}"
        f" --vocabulary {{input.vocabulary}} --output {{output[0]}}"


rule simulate_documents:
    input:
        f"{RUN}/manifest/manifest.json",
    output:
        f"{RUN}/text/simulated/{{documents}}.parquet",
    params:
        slice=lambda wildcards: slice_of("seed", "auxiliary", documents=CONFIG.documents[wildcards.documents].model_dump()),
    shell:
        f"{JOINTSPACE} simulate-documents {{wildcards.documents}} --manifest {RUN}/manifest --config {RESOLVED}"
        f" --output {{output[0]}}"


rule encode_documents:
    input:
        f"{RUN}/manifest/shards/{{shard}}.json",
        vocabulary=f"{RUN}/text/vocabulary.json",
        documents=documents_of,
    output:
        f"{RUN}/text/documents/{{documents}}/shard-{{shard}}.h5",
        f"{RUN}/text/documents/{{documents}}/shard-{{shard}}.h5.json",
    params:
        slice=lambda wildcards: slice_of(documents=CONFIG.documents[wildcards.documents].model_dump()),
        documents=lambda wildcards, input: f"--documents {input.documents}" if input.documents else "",
    shell:
        f"{JOINTSPACE} encode-documents {{wildcards.documents}} --manifest {RUN}/manifest --shard {{wildcards.shard}}"
        f" --vocabulary {{input.vocabulary}} {{params.documents}} --config {RESOLVED} --output {{output[0]}}"


rule accumulate:
    input:
        f"{RUN}/manifest/shards/{{shard}}.json",
        f"{RUN}/text/tfidf/shard-{{shard}}.h5",
        features=summed_features,
    output:
        f"{RUN}/{{sums}}/target/shard-{{shard}}.h5",
        f"{RUN}/{{sums}}/target/shard-{{shard}}.h5.json",
    params:
        slice=lambda wildcards: sums_slice(wildcards, "image_view"),
        options=sums_options,
    threads: 8
    shell:
        f"{JOINTSPACE} accumulate --manifest {RUN}/manifest --shard {{wildcards.shard}} --features {RUN}/features"
        f" --tfidf {RUN}/text/tfidf --pairs target {{params.options}} --config {RESOLVED} --output {{output[0]}}"


rule accumulate_auxiliary:
    input:
        f"{RUN}/manifest/shards/{{shard}}.json",
        f"{RUN}/text/documents/{{documents}}/shard-{{shard}}.h5",
        features=summed_features,
    output:
        f"{RUN}/{{sums}}/auxiliary/{{documents}}/shard-{{shard}}.h5",
        f"{RUN}/{{sums}}/auxiliary/{{documents}}/shard-{{shard}}.h5.json",
    params:
        slice=lambda wildcards: sums_slice(wildcards, "image_view", "auxiliary"),
        options=sums_options,
    threads: 8
    shell:
        f"{JOINTSPACE} accumulate --manifest {RUN}/manifest --shard {{wildcards.shard}} --features {RUN}/features"
        f" --tfidf {RUN}/text/documents/{{wildcards.documents}} --pairs auxiliary {{params.options}}"
        f" --config {RESOLVED} --output {{output[0]}}"


rule build_token_vocabulary:
    input:
        f"{RUN}/manifest/manifest.json",
    output:
        f"{RUN}/text/tokens.json",
    params:
        slice=slice_of("tokens"),
    shell:
        f"{JOINTSPACE} build-token-vocabulary --manifest {RUN}/manifest --config {RESOLVED} --output {{output}}"


rule encode_tokens:
    input:
        f"{RUN}/manifest/shards/{{shard}}.json",
        vocabulary=f"{RUN}/text/tokens.json",
    output:
        f"{RUN}/text/tokens/shard-{{shard}}.h5",
        f"{RUN}/text/tokens/shard-{{shard}}.h5.json",
    shell:
        f"{JOINTSPACE} encode-tokens --manifest {RUN}/manifest --shard {{wildcards.shard}}"
        f" --vocabulary {{input.vocabulary}} --output {{output[0]}}"


rule train:
    input:
        f"{RUN}/manifest/manifest.json",
        sentences_of,
        features_of,
        start=start_of,
        vocabulary=vocabulary_of,
    output:
        f"{RUN}/models/{{row}}/model.json",
        f"{RUN}/models/{{row}}/model.safetensors",
    wildcard_constraints:
        row="|".join(TRAINED_ROWS) or "(?!)",
    params:
        slice=lambda wildcards: train_slice(CONFIG.row(wildcards.row)),
        start=lambda wildcards, input: f"--start {os.path.dirname(input.start[0])}" if input.start else "",
    threads: 8
    shell:
        f"{JOINTSPACE} train {{wildcards.row}} --manifest {RUN}/manifest --features {RUN}/features"
        f" --tfidf {RUN}/text/tfidf --tokens {RUN}/text/tokens --vocabulary {{input.vocabulary}} {{params.start}}"
        f" --config {RESOLVED} --output {RUN}/models/{{wildcards.row}}"


rule fit:
    input:
        every_shard(f"{RUN}/moments/target/shard-{{shard}}.h5"),
        every_shard(f"{RUN}/text/tfidf/shard-{{shard}}.h5"),
        features_of,
        auxiliary_of,
    output:
        f"{RUN}/models/{{row}}/model.json",
        f"{RUN}/models/{{row}}/model.safetensors",
    wildcard_constraints:
        row="|".join(row for row in MODELS if row not in TRAINED_ROWS) or "(?!)",
    params:
        slice=lambda wildcards: fit_slice(CONFIG.row(wildcards.row)),
        auxiliary=auxiliary_options,
    threads: 8
    shell:
        f"{JOINTSPACE} fit {{wildcards.row}} --manifest {RUN}/manifest --features {RUN}/features"
        f" --tfidf {RUN}/text/tfidf --moments {RUN}/moments/target {{params.auxiliary}} --config {RESOLVED}"
        f" --output {RUN}/models/{{wildcards.row}}"


rule embed:
    input:
        features_of,
        sentences_of,
        f"{RUN}/models/{{row}}/model.json",
    output:
        f"{RUN}/embeddings/{{row}}/shard-{{shard}}.h5",
        f"{RUN}/embeddings/{{row}}/shard-{{shard}}.h5.json",
    shell:
        f"{JOINTSPACE} embed --manifest {RUN}/manifest --shard {{wildcards.shard}} --features {RUN}/features"
        f" --tfidf {RUN}/text/tfidf --tokens {RUN}/text/tokens --model {RUN}/models/{{wildcards.row}}"
        f" --output {{output[0]}}"


rule evaluate:
    input:
        f"{RUN}/manifest/manifest.json",
        every_shard(f"{RUN}/embeddings/{{{{row}}}}/shard-{{shard}}.h5"),
    output:
        f"{RUN}/evaluation/{{row}}.{{split}}.{{protocol}}.json",
    params:
        slice=slice_of("seed", bootstrap=CONFIG.evaluate.bootstrap),
    shell:
        f"{JOINTSPACE} evaluate --manifest {RUN}/manifest --embeddings {RUN}/embeddings/{{wildcards.row}}"
        f" --split {{wildcards.split}} --protocol {{wildcards.protocol}} --config {RESOLVED} --output {{output}}"


rule summarise:
    input:
        expand(
            f"{RUN}/evaluation/{{row}}.{{split}}.{{protocol}}.json",
            row=ROWS,
            split=CONFIG.evaluate.splits,
            protocol=CONFIG.evaluate.protocols,
        ),
    output:
        f"{RUN}/evaluation/summary.json",
        f"{RUN}/evaluation/summary.md",
    shell:
        f"{JOINTSPACE} summarise {{input}} --output {{output[0]}}"


rule build_index:
    input:
        f"{RUN}/manifest/manifest.json",
        encoders_of,
        every_shard(f"{RUN}/embeddings/{{{{row}}}}/shard-{{shard}}.h5"),
        f"{RUN}/models/{{row}}/model.json",
        vocabulary=vocabulary_of,
    output:
        f"{RUN}/index/{{row}}/card.json",
    params:
        slice=slice_of("index"),
    threads: 8
    shell:
        f"{JOINTSPACE} build-index --manifest {RUN}/manifest --embeddings {RUN}/embeddings/{{wildcards.row}}"
        f" --model {RUN}/models/{{wildcards.row}} --vocabulary {{input.vocabulary}} --encoders {RUN}/encoders"
        f" --config {RESOLVED} --output {RUN}/index/{{wildcards.row}}"


rule study:
    input:
        every_shard(f"{RUN}/text/tfidf/shard-{{shard}}.h5"),
        every_shard(f"{STUDY}/moments/target/shard-{{shard}}.h5"),
        lambda wildcards: expand(
            f"{STUDY}/moments/auxiliary/{{documents}}/shard-{{shard}}.h5", documents=STUDY_DOCUMENTS, shard=shards()
        ),
    output:
        f"{STUDY}/study.json",
    params:
        slice=slice_of("study", "transfer", "auxiliary", "kcca", "wsabie_sgd", "wsabie_adagrad", "seed"),
    threads: 8
    shell:
        f"{JOINTSPACE} study --manifest {RUN}/manifest --features {RUN}/features --tfidf {RUN}/text/tfidf"
        f" --moments {STUDY}/moments/target --auxiliary {STUDY}/moments/auxiliary --documents {RUN}/text/documents"
        f" --config {RESOLVED} --output {STUDY}"


rule tabulate:
    input:
        f"{STUDY}/study.json",
    output:
        f"{STUDY}/tables.md",
    params:
        slice=slice_of("seed", "name", bootstrap=CONFIG.evaluate.bootstrap),
    shell:
        f"{JOINTSPACE} tabulate --study {STUDY} --config {RESOLVED} --output {{output}}"


rule gong:
    input:
        f"{STUDY}/tables.md",


rule report:
    input:
        f"{RUN}/manifest/manifest.json",
        expand(f"{RUN}/index/{{row}}/card.json", row=ROWS),
        summary=f"{RUN}/evaluation/summary.json",
    output:
        f"{RUN}/report/index.html",
    params:
        bundles=expand(f"{RUN}/index/{{row}}", row=ROWS),
    shell:
        f"{JOINTSPACE} report {{params.bundles}} --manifest {RUN}/manifest --summary {{input.summary}}"
        f" --config {RESOLVED} --output {{output}}"
