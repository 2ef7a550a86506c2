# Other models: trained ones, variants, ensembles, and what those of fragments make of regions and phrases.


rule adopt:
    input: reads("adopt")
    output: LAYOUT.model("{model}").commit
    wildcard_constraints: model=any_of("adopt", "model")
    params: decides=decides("adopt")
    log: LOGS / "adopt.{model}.log"
    benchmark: BENCHMARKS / "adopt/{model}.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("adopt {wildcards.model:q}")


rule join_embeddings:
    input: reads("join_embeddings")
    output: LAYOUT.embeddings("{model}").part("{part}")
    wildcard_constraints: model=any_of("join_embeddings", "model")
    params: decides=decides("join_embeddings")
    log: LOGS / "join_embeddings.{model}.{part}.log"
    benchmark: BENCHMARKS / "join_embeddings/{model}.{part}.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("join-embeddings {wildcards.model:q} --part {wildcards.part}")


rule align:
    input: reads("align")
    output: LAYOUT.alignments("{model}", "{split}").commit
    wildcard_constraints: model=any_of("align", "model"), split=any_of("align", "split")
    params: decides=decides("align")
    log: LOGS / "align.{model}.{split}.log"
    benchmark: BENCHMARKS / "align/{model}.{split}.tsv"
    threads: 1
    resources: mem_mb=megabytes(3000)
    shell: jointspace("align {wildcards.model:q} {wildcards.split:q}")


rule embed_phrases:
    input: reads("embed_phrases")
    output: LAYOUT.phrases("{model}", "{split}").commit
    wildcard_constraints: model=any_of("embed_phrases", "model"), split=any_of("embed_phrases", "split")
    params: decides=decides("embed_phrases")
    log: LOGS / "embed_phrases.{model}.{split}.log"
    benchmark: BENCHMARKS / "embed_phrases/{model}.{split}.tsv"
    threads: 1
    resources: mem_mb=megabytes(6000), gpu=GPU
    shell: on_gpu("embed-phrases {wildcards.model:q} {wildcards.split:q}")


rule rank_phrases:
    input: reads("rank_phrases")
    output: LAYOUT.phrase_ranking("{model}", "{split}").commit
    wildcard_constraints: model=any_of("rank_phrases", "model"), split=any_of("rank_phrases", "split")
    params: decides=decides("rank_phrases")
    log: LOGS / "rank_phrases.{model}.{split}.log"
    benchmark: BENCHMARKS / "rank_phrases/{model}.{split}.tsv"
    threads: 1
    resources: mem_mb=megabytes(8000)
    shell: jointspace("rank-phrases {wildcards.model:q} {wildcards.split:q}")


rule train:
    input: reads("train")
    output: LAYOUT.model("{model}").commit
    wildcard_constraints: model=any_of("train", "model")
    params: decides=decides("train")
    log: LOGS / "train.{model}.log"
    benchmark: BENCHMARKS / "train/{model}.tsv"
    threads: 8
    resources: mem_mb=megabytes(6000), gpu=GPU
    shell: on_gpu("train {wildcards.model:q}")


rule fit_hubness:
    input: reads("fit_hubness")
    output: LAYOUT.model("{model}").commit
    wildcard_constraints: model=any_of("fit_hubness", "model")
    params: decides=decides("fit_hubness")
    log: LOGS / "fit_hubness.{model}.log"
    benchmark: BENCHMARKS / "fit_hubness/{model}.tsv"
    threads: 1
    resources: mem_mb=megabytes(4000)
    shell: jointspace("fit-hubness {wildcards.model:q}")


rule combine:
    input: reads("combine")
    output: LAYOUT.model("{model}").commit
    wildcard_constraints: model=any_of("combine", "model")
    params: decides=decides("combine")
    log: LOGS / "combine.{model}.log"
    benchmark: BENCHMARKS / "combine/{model}.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("combine {wildcards.model:q}")
