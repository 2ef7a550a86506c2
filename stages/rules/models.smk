# Moments, and what models make of images and sentences.


rule accumulate:
    input: FLOW.input("accumulate")
    output: FLOW.output("accumulate")
    wildcard_constraints: **FLOW.constraints("accumulate")
    params: **FLOW.params("accumulate")
    threads: FLOW.threads("accumulate")
    benchmark: FLOW.benchmark("accumulate")
    resources: **FLOW.resources("accumulate")
    shell: FLOW.shell("accumulate")


rule embed:
    input: FLOW.input("embed")
    output: FLOW.output("embed")
    wildcard_constraints: **FLOW.constraints("embed")
    params: **FLOW.params("embed")
    threads: FLOW.threads("embed")
    benchmark: FLOW.benchmark("embed")
    resources: **FLOW.resources("embed")
    shell: FLOW.shell("embed")


rule join_embeddings:
    input: FLOW.input("join_embeddings")
    output: FLOW.output("join_embeddings")
    wildcard_constraints: **FLOW.constraints("join_embeddings")
    params: **FLOW.params("join_embeddings")
    threads: FLOW.threads("join_embeddings")
    benchmark: FLOW.benchmark("join_embeddings")
    resources: **FLOW.resources("join_embeddings")
    shell: FLOW.shell("join_embeddings")


rule build_index:
    input: FLOW.input("build_index")
    output: FLOW.output("build_index")
    wildcard_constraints: **FLOW.constraints("build_index")
    params: **FLOW.params("build_index")
    threads: FLOW.threads("build_index")
    benchmark: FLOW.benchmark("build_index")
    resources: **FLOW.resources("build_index")
    shell: FLOW.shell("build_index")
