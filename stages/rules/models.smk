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


rule adopt:
    input: FLOW.input("adopt")
    output: FLOW.output("adopt")
    wildcard_constraints: **FLOW.constraints("adopt")
    params: **FLOW.params("adopt")
    threads: FLOW.threads("adopt")
    benchmark: FLOW.benchmark("adopt")
    resources: **FLOW.resources("adopt")
    shell: FLOW.shell("adopt")


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


rule align:
    input: FLOW.input("align")
    output: FLOW.output("align")
    wildcard_constraints: **FLOW.constraints("align")
    params: **FLOW.params("align")
    threads: FLOW.threads("align")
    benchmark: FLOW.benchmark("align")
    resources: **FLOW.resources("align")
    shell: FLOW.shell("align")


rule list_magnitudes:
    input: FLOW.input("list_magnitudes")
    output: FLOW.output("list_magnitudes")
    wildcard_constraints: **FLOW.constraints("list_magnitudes")
    params: **FLOW.params("list_magnitudes")
    threads: FLOW.threads("list_magnitudes")
    benchmark: FLOW.benchmark("list_magnitudes")
    resources: **FLOW.resources("list_magnitudes")
    shell: FLOW.shell("list_magnitudes")


rule embed_phrases:
    input: FLOW.input("embed_phrases")
    output: FLOW.output("embed_phrases")
    wildcard_constraints: **FLOW.constraints("embed_phrases")
    params: **FLOW.params("embed_phrases")
    threads: FLOW.threads("embed_phrases")
    benchmark: FLOW.benchmark("embed_phrases")
    resources: **FLOW.resources("embed_phrases")
    shell: FLOW.shell("embed_phrases")


rule rank_phrases:
    input: FLOW.input("rank_phrases")
    output: FLOW.output("rank_phrases")
    wildcard_constraints: **FLOW.constraints("rank_phrases")
    params: **FLOW.params("rank_phrases")
    threads: FLOW.threads("rank_phrases")
    benchmark: FLOW.benchmark("rank_phrases")
    resources: **FLOW.resources("rank_phrases")
    shell: FLOW.shell("rank_phrases")


rule show_phrases:
    input: FLOW.input("show_phrases")
    output: FLOW.output("show_phrases")
    wildcard_constraints: **FLOW.constraints("show_phrases")
    params: **FLOW.params("show_phrases")
    threads: FLOW.threads("show_phrases")
    benchmark: FLOW.benchmark("show_phrases")
    resources: **FLOW.resources("show_phrases")
    shell: FLOW.shell("show_phrases")


rule fit:
    input: FLOW.input("fit")
    output: FLOW.output("fit")
    wildcard_constraints: **FLOW.constraints("fit")
    params: **FLOW.params("fit")
    threads: FLOW.threads("fit")
    benchmark: FLOW.benchmark("fit")
    resources: **FLOW.resources("fit")
    shell: FLOW.shell("fit")


rule train:
    input: FLOW.input("train")
    output: FLOW.output("train")
    wildcard_constraints: **FLOW.constraints("train")
    params: **FLOW.params("train")
    threads: FLOW.threads("train")
    benchmark: FLOW.benchmark("train")
    resources: **FLOW.resources("train")
    shell: FLOW.shell("train")


rule fit_csls:
    input: FLOW.input("fit_csls")
    output: FLOW.output("fit_csls")
    wildcard_constraints: **FLOW.constraints("fit_csls")
    params: **FLOW.params("fit_csls")
    threads: FLOW.threads("fit_csls")
    benchmark: FLOW.benchmark("fit_csls")
    resources: **FLOW.resources("fit_csls")
    shell: FLOW.shell("fit_csls")


rule combine:
    input: FLOW.input("combine")
    output: FLOW.output("combine")
    wildcard_constraints: **FLOW.constraints("combine")
    params: **FLOW.params("combine")
    threads: FLOW.threads("combine")
    benchmark: FLOW.benchmark("combine")
    resources: **FLOW.resources("combine")
    shell: FLOW.shell("combine")


rule list_relations:
    input: FLOW.input("list_relations")
    output: FLOW.output("list_relations")
    wildcard_constraints: **FLOW.constraints("list_relations")
    params: **FLOW.params("list_relations")
    threads: FLOW.threads("list_relations")
    benchmark: FLOW.benchmark("list_relations")
    resources: **FLOW.resources("list_relations")
    shell: FLOW.shell("list_relations")
