# Evaluations, descriptions, and the report.


rule evaluate:
    input: reads("evaluate", every_protocol)
    output: [LAYOUT.evaluation("{model}", "{split}", protocol).commit for protocol in CONFIG.evaluate.protocols]
    wildcard_constraints: model=any_of("evaluate", "model"), split=any_of("evaluate", "split")
    params: decides=decides("evaluate", every_protocol)
    log: LOGS / "evaluate.{model}.{split}.log"
    benchmark: BENCHMARKS / "evaluate/{model}.{split}.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("evaluate {wildcards.model:q} {wildcards.split}")


rule rank_sentences:
    input: reads("rank_sentences")
    output: LAYOUT.evaluation("{generator}-perplexity", "{split}", "{protocol}").commit
    wildcard_constraints: generator=any_of("rank_sentences", "generator"), split=any_of("rank_sentences", "split"), protocol=any_of("rank_sentences", "protocol")
    params: decides=decides("rank_sentences")
    log: LOGS / "rank_sentences.{generator}.{split}.{protocol}.log"
    benchmark: BENCHMARKS / "rank_sentences/{generator}.{split}.{protocol}.tsv"
    threads: 8
    resources: mem_mb=megabytes(8000), gpu=GPU
    shell: on_gpu("rank-sentences {wildcards.generator:q} {wildcards.split:q} {wildcards.protocol:q}")


rule summarise:
    input: reads("summarise")
    output:
        LAYOUT.summary.commit,
        shown(LAYOUT.summary_table, "summary", "Evaluation"),
    params: decides=decides("summarise")
    log: LOGS / "summarise.log"
    benchmark: BENCHMARKS / "summarise/all.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("summarise")


rule train_generator:
    input: reads("train_generator")
    output: LAYOUT.generator("{generator}").commit
    wildcard_constraints: generator=any_of("train_generator", "generator")
    params: decides=decides("train_generator")
    log: LOGS / "train_generator.{generator}.log"
    benchmark: BENCHMARKS / "train_generator/{generator}.tsv"
    threads: 8
    resources: mem_mb=megabytes(6000), gpu=GPU
    shell: on_gpu("train-generator {wildcards.generator:q}")


rule describe:
    input: reads("describe")
    output:
        LAYOUT.descriptions("{generator}", "{subject}").commit,
        shown(LAYOUT.description_page("{generator}", "{subject}"), "descriptions", "Generated sentences"),
    wildcard_constraints: generator=any_of("describe", "generator"), subject=any_of("describe", "subject")
    params: decides=decides("describe")
    log: LOGS / "describe.{generator}.{subject}.log"
    benchmark: BENCHMARKS / "describe/{generator}.{subject}.tsv"
    threads: 8
    resources: mem_mb=megabytes(8000), gpu=GPU
    shell: on_gpu("describe {wildcards.generator:q} {wildcards.subject:q}")


rule evaluate_descriptions:
    input: reads("evaluate_descriptions")
    output: LAYOUT.description_evaluation("{generator}", "{subject}").commit
    wildcard_constraints: generator=any_of("evaluate_descriptions", "generator"), subject=any_of("evaluate_descriptions", "subject")
    params: decides=decides("evaluate_descriptions")
    log: LOGS / "evaluate_descriptions.{generator}.{subject}.log"
    benchmark: BENCHMARKS / "evaluate_descriptions/{generator}.{subject}.tsv"
    threads: 1
    resources: mem_mb=megabytes(6000), gpu=GPU
    shell: on_gpu("evaluate-descriptions {wildcards.generator:q} {wildcards.subject:q}")


rule report:
    input: reads("report")
    output: shown(LAYOUT.report, "report", "Report")
    params: decides=decides("report")
    log: LOGS / "report.log"
    benchmark: BENCHMARKS / "report/all.tsv"
    threads: 1
    resources: mem_mb=megabytes(4000)
    shell: jointspace("report")
