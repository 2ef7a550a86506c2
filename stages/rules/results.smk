# Other results: generated sentences, and the tables of the papers.


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


rule tabulate:
    input: reads("tabulate")
    output: shown(LAYOUT.tables, "tables", "Tables")
    params: decides=decides("tabulate")
    log: LOGS / "tabulate.log"
    benchmark: BENCHMARKS / "tabulate/all.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("tabulate")


rule reproduce:
    input: reads("reproduce")
    output: shown(LAYOUT.reproduction, "reproduction", "Tables")
    params: decides=decides("reproduce")
    log: LOGS / "reproduce.log"
    benchmark: BENCHMARKS / "reproduce/all.tsv"
    threads: 1
    resources: mem_mb=megabytes(8000)
    shell: jointspace("reproduce")


rule study:
    input: reads("study")
    output: LAYOUT.study.commit
    params: decides=decides("study")
    log: LOGS / "study.log"
    benchmark: BENCHMARKS / "study/all.tsv"
    threads: 8
    resources: mem_mb=megabytes(4000), gpu=GPU
    shell: on_gpu("study")


rule sweep:
    input: reads("sweep")
    output: LAYOUT.sweep("{model}").commit
    wildcard_constraints: model=any_of("sweep", "model")
    params: decides=decides("sweep")
    log: LOGS / "sweep.{model}.log"
    benchmark: BENCHMARKS / "sweep/{model}.tsv"
    threads: 8
    resources: mem_mb=megabytes(4000), gpu=GPU
    shell: on_gpu("sweep {wildcards.model:q}")
