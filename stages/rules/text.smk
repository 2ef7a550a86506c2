# Other sentences: imported vectors, words, trees, and documents (weak text).


rule import_sentences:
    input: reads("import_sentences")
    output: LAYOUT.sentences("{encoder}").part("{part}")
    wildcard_constraints: encoder=any_of("import_sentences", "encoder")
    params: decides=decides("import_sentences")
    log: LOGS / "import_sentences.{encoder}.{part}.log"
    benchmark: BENCHMARKS / "import_sentences/{encoder}.{part}.tsv"
    threads: 1
    resources: mem_mb=megabytes(4000)
    shell: jointspace("import-sentences {wildcards.encoder:q} --part {wildcards.part}")


rule simulate_documents:
    input: reads("simulate_documents")
    output: LAYOUT.simulated("{documents}").commit
    wildcard_constraints: documents=any_of("simulate_documents", "documents")
    params: decides=decides("simulate_documents")
    log: LOGS / "simulate_documents.{documents}.log"
    benchmark: BENCHMARKS / "simulate_documents/{documents}.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("simulate-documents {wildcards.documents:q}")


rule encode_documents:
    input: reads("encode_documents")
    output: LAYOUT.documents("{documents}", "{encoder}").part("{part}")
    wildcard_constraints: documents=any_of("encode_documents", "documents"), encoder=any_of("encode_documents", "encoder")
    params: decides=decides("encode_documents")
    log: LOGS / "encode_documents.{documents}.{encoder}.{part}.log"
    benchmark: BENCHMARKS / "encode_documents/{documents}.{encoder}.{part}.tsv"
    threads: 1
    resources: mem_mb=megabytes(3000)
    shell: jointspace("encode-documents {wildcards.documents:q} {wildcards.encoder:q} --part {wildcards.part}")


rule build_token_vocabulary:
    input: reads("build_token_vocabulary")
    output: LAYOUT.token_vocabulary.commit
    params: decides=decides("build_token_vocabulary")
    log: LOGS / "build_token_vocabulary.log"
    benchmark: BENCHMARKS / "build_token_vocabulary/all.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("build-token-vocabulary")


rule encode_tokens:
    input: reads("encode_tokens")
    output: LAYOUT.sentences("tokens").part("{part}")
    params: decides=decides("encode_tokens")
    log: LOGS / "encode_tokens.{part}.log"
    benchmark: BENCHMARKS / "encode_tokens/{part}.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("encode-tokens --part {wildcards.part}")


rule train_word_vectors:
    input: reads("train_word_vectors")
    output: LAYOUT.word_vectors.commit
    params: decides=decides("train_word_vectors")
    log: LOGS / "train_word_vectors.log"
    benchmark: BENCHMARKS / "train_word_vectors/all.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("train-word-vectors")


rule train_parser:
    input: reads("train_parser")
    output: LAYOUT.parser.commit
    params: decides=decides("train_parser")
    log: LOGS / "train_parser.log"
    benchmark: BENCHMARKS / "train_parser/all.tsv"
    threads: 8
    resources: mem_mb=megabytes(3000)
    shell: jointspace("train-parser")


rule parse:
    input: reads("parse")
    output: LAYOUT.parses.part("{part}")
    params: decides=decides("parse")
    log: LOGS / "parse.{part}.log"
    benchmark: BENCHMARKS / "parse/{part}.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("parse --part {wildcards.part}")


rule build_label_table:
    input: reads("build_label_table")
    output: LAYOUT.labels.commit
    params: decides=decides("build_label_table")
    log: LOGS / "build_label_table.log"
    benchmark: BENCHMARKS / "build_label_table/all.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("build-label-table")


rule encode_trees:
    input: reads("encode_trees")
    output: LAYOUT.sentences("trees").part("{part}")
    params: decides=decides("encode_trees")
    log: LOGS / "encode_trees.{part}.log"
    benchmark: BENCHMARKS / "encode_trees/{part}.tsv"
    threads: 1
    resources: mem_mb=megabytes(2000)
    shell: jointspace("encode-trees --part {wildcards.part}")
