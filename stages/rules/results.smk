# Evaluations, descriptions, and the report.


rule evaluate:
    input: FLOW.input("evaluate")
    output: FLOW.output("evaluate")
    wildcard_constraints: **FLOW.constraints("evaluate")
    params: **FLOW.params("evaluate")
    threads: FLOW.threads("evaluate")
    benchmark: FLOW.benchmark("evaluate")
    resources: **FLOW.resources("evaluate")
    shell: FLOW.shell("evaluate")


rule rank_sentences:
    input: FLOW.input("rank_sentences")
    output: FLOW.output("rank_sentences")
    wildcard_constraints: **FLOW.constraints("rank_sentences")
    params: **FLOW.params("rank_sentences")
    threads: FLOW.threads("rank_sentences")
    benchmark: FLOW.benchmark("rank_sentences")
    resources: **FLOW.resources("rank_sentences")
    shell: FLOW.shell("rank_sentences")


rule summarise:
    input: FLOW.input("summarise")
    output: FLOW.output("summarise")
    wildcard_constraints: **FLOW.constraints("summarise")
    params: **FLOW.params("summarise")
    threads: FLOW.threads("summarise")
    benchmark: FLOW.benchmark("summarise")
    resources: **FLOW.resources("summarise")
    shell: FLOW.shell("summarise")


rule train_generator:
    input: FLOW.input("train_generator")
    output: FLOW.output("train_generator")
    wildcard_constraints: **FLOW.constraints("train_generator")
    params: **FLOW.params("train_generator")
    threads: FLOW.threads("train_generator")
    benchmark: FLOW.benchmark("train_generator")
    resources: **FLOW.resources("train_generator")
    shell: FLOW.shell("train_generator")


rule describe:
    input: FLOW.input("describe")
    output: FLOW.output("describe")
    wildcard_constraints: **FLOW.constraints("describe")
    params: **FLOW.params("describe")
    threads: FLOW.threads("describe")
    benchmark: FLOW.benchmark("describe")
    resources: **FLOW.resources("describe")
    shell: FLOW.shell("describe")


rule evaluate_descriptions:
    input: FLOW.input("evaluate_descriptions")
    output: FLOW.output("evaluate_descriptions")
    wildcard_constraints: **FLOW.constraints("evaluate_descriptions")
    params: **FLOW.params("evaluate_descriptions")
    threads: FLOW.threads("evaluate_descriptions")
    benchmark: FLOW.benchmark("evaluate_descriptions")
    resources: **FLOW.resources("evaluate_descriptions")
    shell: FLOW.shell("evaluate_descriptions")


rule report:
    input: FLOW.input("report")
    output: FLOW.output("report")
    wildcard_constraints: **FLOW.constraints("report")
    params: **FLOW.params("report")
    threads: FLOW.threads("report")
    benchmark: FLOW.benchmark("report")
    resources: **FLOW.resources("report")
    shell: FLOW.shell("report")


rule compare_sentences:
    input: FLOW.input("compare_sentences")
    output: FLOW.output("compare_sentences")
    wildcard_constraints: **FLOW.constraints("compare_sentences")
    params: **FLOW.params("compare_sentences")
    threads: FLOW.threads("compare_sentences")
    benchmark: FLOW.benchmark("compare_sentences")
    resources: **FLOW.resources("compare_sentences")
    shell: FLOW.shell("compare_sentences")
