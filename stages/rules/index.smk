# Bundles: built from embeddings. Where a model has several (`index.bundles`), each is a job: `ncca/00`, `ncca/01`.


rule build_index:
    input: reads("build_index")
    output: LAYOUT.index("{bundle}").commit
    wildcard_constraints: bundle=any_of("build_index", "bundle")
    params: decides=decides("build_index")
    log: LOGS / "build_index.{bundle}.log"
    benchmark: BENCHMARKS / "build_index/{bundle}.tsv"
    threads: 8
    resources: mem_mb=megabytes(3000), gpu=GPU
    shell: on_gpu("build-index {wildcards.bundle:q}")
