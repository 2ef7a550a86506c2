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
