# The tables of the papers.


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
