# Bundles: built from embeddings.


rule build_index:
    input: reads("build_index")
    output: LAYOUT.index("{model}").commit
    wildcard_constraints: model=any_of("build_index", "model")
    params: decides=decides("build_index")
    log: LOGS / "build_index.{model}.log"
    benchmark: BENCHMARKS / "build_index/{model}.tsv"
    threads: 8
    resources: mem_mb=megabytes(3000), gpu=GPU
    shell: on_gpu("build-index {wildcards.model:q}")
