# From photos and captions to a searchable index: one rule per stage, one command per rule.
#
#   snakemake all --cores 2                                             the demo, into results/demo
#   snakemake all --cores 2 --configfile config/flickr8k.yaml           a collection of your own
#   snakemake all -n, snakemake --rulegraph                             the jobs that would run, and the graph
#   snakemake all --cores 2 --report report.html                        a report about a finished run

import yaml

from pipeline.config.loading import default_path
from pipeline.storage.batch import publish_text
from pipeline.run.reading.results import close
from pipeline.run.reading.requirements import require_all


configfile: str(default_path())


include: "stages/rules/common.smk"


wildcard_constraints:
    part=r"\d{5}",


onstart:
    try:
        require_all(THIS_RUN, STAGES)
    except JointspaceError as error:
        raise WorkflowError(str(error))
    # Commands read the configuration of the run here.
    publish_text(LAYOUT.config, yaml.safe_dump(dict(config), sort_keys=False))


onsuccess:
    for warning in close(THIS_RUN, STARTED):
        logger.warning(warning)


localrules:
    all,


rule all:
    input: [wanted(stage) for stage in STAGES]


# The main pipeline, in order: a manifest of images and captions, their features and vectors, the moments, a model, the
# embeddings, the index for searches, and the results. `reads` lists the inputs of a job, see common.smk.


rule ingest:
    input: reads("ingest")
    output: LAYOUT.manifest.commit
    params: decides=decides("ingest")
    log: LOGS / "ingest.log"
    benchmark: BENCHMARKS / "ingest/all.tsv"
    threads: STAGES["ingest"].threads
    resources: mem_mb=memory("ingest")
    shell: jointspace("ingest --check-splits")


rule prepare_encoder:
    input: reads("prepare_encoder")
    output: LAYOUT.any_encoder("{encoder}").commit
    wildcard_constraints: encoder=any_of("prepare_encoder", "encoder")
    params: decides=decides("prepare_encoder")
    log: LOGS / "prepare_encoder.{encoder}.log"
    benchmark: BENCHMARKS / "prepare_encoder/{encoder}.tsv"
    threads: STAGES["prepare_encoder"].threads
    resources: mem_mb=memory("prepare_encoder")
    shell: jointspace("prepare-encoder {wildcards.encoder:q}")


if PIXELS:

    rule extract:
        """Extract the features of all encoders of the run in one job, which decodes each photo once."""
        input: reads("extract", every_pixel_encoder)
        output: [LAYOUT.features(name).part_record("{part}") for name in PIXELS]
        params: decides=decides("extract", every_pixel_encoder)
        log: LOGS / "extract.{part}.log"
        benchmark: BENCHMARKS / "extract/{part}.tsv"
        threads: threads("extract")
        resources: mem_mb=memory("extract"), gpu=gpus("extract")
        shell: on_gpu("extract --part {wildcards.part}")


rule extract_more:
    """Extract the features of an encoder that only the study compares."""
    input: reads("extract")
    output: LAYOUT.features("{encoder}").part_record("{part}")
    wildcard_constraints: encoder=any_of("extract", "encoder", but=PIXELS)
    params: decides=decides("extract")
    log: LOGS / "extract.{encoder}.{part}.log"
    benchmark: BENCHMARKS / "extract_more/{encoder}.{part}.tsv"
    threads: threads("extract")
    resources: mem_mb=memory("extract"), gpu=gpus("extract")
    shell: on_gpu("extract {wildcards.encoder:q} --part {wildcards.part}")


rule encode_sentences:
    input: reads("encode_sentences")
    output: LAYOUT.sentences("{encoder}").part_record("{part}")
    wildcard_constraints: encoder=any_of("encode_sentences", "encoder")
    params: decides=decides("encode_sentences")
    log: LOGS / "encode_sentences.{encoder}.{part}.log"
    benchmark: BENCHMARKS / "encode_sentences/{encoder}.{part}.tsv"
    threads: STAGES["encode_sentences"].threads
    resources: mem_mb=memory("encode_sentences"), gpu=gpu_of_texts
    shell: on_gpu("encode-sentences {wildcards.encoder:q} --part {wildcards.part}")


rule accumulate:
    input: reads("accumulate")
    output: LAYOUT.moments("{pairs}").part_record(0)
    wildcard_constraints: pairs=any_of("accumulate", "pairs")
    params: decides=decides("accumulate")
    log: LOGS / "accumulate.{pairs}.log"
    benchmark: BENCHMARKS / "accumulate/{pairs}.tsv"
    threads: STAGES["accumulate"].threads
    resources: mem_mb=memory("accumulate"), gpu=GPU
    shell: on_gpu("accumulate {wildcards.pairs:q}")


rule fit:
    input: reads("fit")
    output: LAYOUT.model("{model}").commit
    wildcard_constraints: model=any_of("fit", "model")
    params: decides=decides("fit")
    log: LOGS / "fit.{model}.log"
    benchmark: BENCHMARKS / "fit/{model}.tsv"
    threads: STAGES["fit"].threads
    resources: mem_mb=memory("fit"), gpu=GPU
    shell: on_gpu("fit {wildcards.model:q}")


rule embed:
    input: reads("embed")
    output: LAYOUT.embeddings("{model}").part_record("{part}")
    wildcard_constraints: model=any_of("embed", "model")
    params: decides=decides("embed")
    log: LOGS / "embed.{model}.{part}.log"
    benchmark: BENCHMARKS / "embed/{model}.{part}.tsv"
    threads: STAGES["embed"].threads
    resources: mem_mb=memory("embed"), gpu=GPU
    shell: on_gpu("embed {wildcards.model:q} --part {wildcards.part}")


rule build_index:
    input: reads("build_index")
    output: LAYOUT.index("{index_shard}").commit
    wildcard_constraints: index_shard=any_of("build_index", "index_shard")
    params: decides=decides("build_index")
    log: LOGS / "build_index.{index_shard}.log"
    benchmark: BENCHMARKS / "build_index/{index_shard}.tsv"
    threads: STAGES["build_index"].threads
    resources: mem_mb=memory("build_index"), gpu=GPU
    shell: on_gpu("build-index {wildcards.index_shard:q}")


rule evaluate:
    input: reads("evaluate", every_protocol)
    output: [LAYOUT.evaluation("{model}", "{split}", protocol).commit for protocol in CONFIG.evaluate.protocols]
    wildcard_constraints: model=any_of("evaluate", "model"), split=any_of("evaluate", "split")
    params: decides=decides("evaluate", every_protocol)
    log: LOGS / "evaluate.{model}.{split}.log"
    benchmark: BENCHMARKS / "evaluate/{model}.{split}.tsv"
    threads: STAGES["evaluate"].threads
    resources: mem_mb=memory("evaluate")
    shell: jointspace("evaluate {wildcards.model:q} {wildcards.split}")


rule summarise:
    input: reads("summarise")
    output: writes(STAGES["summarise"], [])
    params: decides=decides("summarise")
    log: LOGS / "summarise.log"
    benchmark: BENCHMARKS / "summarise/all.tsv"
    threads: STAGES["summarise"].threads
    resources: mem_mb=memory("summarise")
    shell: jointspace("summarise")


rule report:
    input: reads("report")
    output: writes(STAGES["report"], [])
    params: decides=decides("report")
    log: LOGS / "report.log"
    benchmark: BENCHMARKS / "report/all.tsv"
    threads: STAGES["report"].threads
    resources: mem_mb=memory("report")
    shell: jointspace("report")


include: "stages/rules/others.smk"
