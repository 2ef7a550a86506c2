# Off the road: features and sentences from elsewhere, regions, trees, trained models, generators, the papers' tables.


rule extract_more:
    """One of the encoders that only the study compares."""
    input: reads("extract")
    output: LAYOUT.features("{encoder}").part("{part}")
    wildcard_constraints: encoder=any_of("extract", "encoder", but=PIXELS)
    params: decides=decides("extract")
    log: LOGS / "extract.{encoder}.{part}.log"
    benchmark: BENCHMARKS / "extract_more/{encoder}.{part}.tsv"
    threads: 16
    resources: mem_mb=megabytes(4000), gpu=GPU
    shell: on_gpu("extract {wildcards.encoder:q} --part {wildcards.part}")


# The rule of every other stage follows from its declaration: what a job is of, reads and writes, and whether it computes
# on a GPU. What Snakemake's own report shows of them:
SHOWN = {
    "describe": ("descriptions", "Generated sentences"),
    "tabulate": ("tables", "Tables"),
    "reproduce": ("reproduction", "Tables"),
}
# The threads and megabytes of a job, where these are not 1 and 2000:
ROOM = {
    "make_demo": (8, 2000),
    "finetune": (8, 4000),
    "fit_map": (16, 4000),
    "map_features": (8, 2000),
    "extract_regions": (8, 8000),
    "pool_regions": (1, 3000),
    "import_vectors": (1, 4000),
    "encode_documents": (1, 3000),
    "train_parser": (8, 3000),
    "align": (1, 3000),
    "embed_phrases": (1, 6000),
    "rank_phrases": (1, 8000),
    "train": (8, 6000),
    "fit_hubness": (1, 4000),
    "rank_sentences": (8, 8000),
    "train_generator": (8, 6000),
    "describe": (8, 8000),
    "evaluate_descriptions": (1, 6000),
    "reproduce": (1, 8000),
    "study": (8, 4000),
    "sweep": (8, 4000),
}


def add_rule(stage):
    """In a function, since the running job evaluates `shell` again, after the loop."""
    names = [f"{{{name}}}" for name in stage.names]
    part = ["{part}"] if stage.sharded else []
    cores, memory = ROOM.get(stage.name, (1, 2000))

    rule:
        name: stage.name
        input: reads(stage.name)
        output: writes(stage, names, SHOWN.get(stage.name))
        wildcard_constraints: **{name: any_of(stage.name, name) for name in stage.names}
        params: decides=decides(stage.name)
        log: LOGS / ".".join([stage.name, *names, *part, "log"])
        benchmark: BENCHMARKS / stage.name / ".".join([*(names + part or ["all"]), "tsv"])
        threads: cores
        resources: mem_mb=megabytes(memory), **({"gpu": GPU} if stage.gpu else {})
        shell: call(stage)


for stage in STAGES.values():
    if stage.name != "extract" and not workflow.is_rule(stage.name):
        add_rule(stage)
