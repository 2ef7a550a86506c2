# Sentences and documents become vectors, words and trees.


rule prepare_text_encoder:
    input: FLOW.input("prepare_text_encoder")
    output: FLOW.output("prepare_text_encoder")
    wildcard_constraints: **FLOW.constraints("prepare_text_encoder")
    params: **FLOW.params("prepare_text_encoder")
    threads: FLOW.threads("prepare_text_encoder")
    benchmark: FLOW.benchmark("prepare_text_encoder")
    resources: **FLOW.resources("prepare_text_encoder")
    shell: FLOW.shell("prepare_text_encoder")


rule encode_sentences:
    input: FLOW.input("encode_sentences")
    output: FLOW.output("encode_sentences")
    wildcard_constraints: **FLOW.constraints("encode_sentences")
    params: **FLOW.params("encode_sentences")
    threads: FLOW.threads("encode_sentences")
    benchmark: FLOW.benchmark("encode_sentences")
    resources: **FLOW.resources("encode_sentences")
    shell: FLOW.shell("encode_sentences")


rule import_sentences:
    input: FLOW.input("import_sentences")
    output: FLOW.output("import_sentences")
    wildcard_constraints: **FLOW.constraints("import_sentences")
    params: **FLOW.params("import_sentences")
    threads: FLOW.threads("import_sentences")
    benchmark: FLOW.benchmark("import_sentences")
    resources: **FLOW.resources("import_sentences")
    shell: FLOW.shell("import_sentences")


rule simulate_documents:
    input: FLOW.input("simulate_documents")
    output: FLOW.output("simulate_documents")
    wildcard_constraints: **FLOW.constraints("simulate_documents")
    params: **FLOW.params("simulate_documents")
    threads: FLOW.threads("simulate_documents")
    benchmark: FLOW.benchmark("simulate_documents")
    resources: **FLOW.resources("simulate_documents")
    shell: FLOW.shell("simulate_documents")


rule encode_documents:
    input: FLOW.input("encode_documents")
    output: FLOW.output("encode_documents")
    wildcard_constraints: **FLOW.constraints("encode_documents")
    params: **FLOW.params("encode_documents")
    threads: FLOW.threads("encode_documents")
    benchmark: FLOW.benchmark("encode_documents")
    resources: **FLOW.resources("encode_documents")
    shell: FLOW.shell("encode_documents")


rule build_token_vocabulary:
    input: FLOW.input("build_token_vocabulary")
    output: FLOW.output("build_token_vocabulary")
    wildcard_constraints: **FLOW.constraints("build_token_vocabulary")
    params: **FLOW.params("build_token_vocabulary")
    threads: FLOW.threads("build_token_vocabulary")
    benchmark: FLOW.benchmark("build_token_vocabulary")
    resources: **FLOW.resources("build_token_vocabulary")
    shell: FLOW.shell("build_token_vocabulary")


rule encode_tokens:
    input: FLOW.input("encode_tokens")
    output: FLOW.output("encode_tokens")
    wildcard_constraints: **FLOW.constraints("encode_tokens")
    params: **FLOW.params("encode_tokens")
    threads: FLOW.threads("encode_tokens")
    benchmark: FLOW.benchmark("encode_tokens")
    resources: **FLOW.resources("encode_tokens")
    shell: FLOW.shell("encode_tokens")


rule train_word_vectors:
    input: FLOW.input("train_word_vectors")
    output: FLOW.output("train_word_vectors")
    wildcard_constraints: **FLOW.constraints("train_word_vectors")
    params: **FLOW.params("train_word_vectors")
    threads: FLOW.threads("train_word_vectors")
    benchmark: FLOW.benchmark("train_word_vectors")
    resources: **FLOW.resources("train_word_vectors")
    shell: FLOW.shell("train_word_vectors")


rule train_parser:
    input: FLOW.input("train_parser")
    output: FLOW.output("train_parser")
    wildcard_constraints: **FLOW.constraints("train_parser")
    params: **FLOW.params("train_parser")
    threads: FLOW.threads("train_parser")
    benchmark: FLOW.benchmark("train_parser")
    resources: **FLOW.resources("train_parser")
    shell: FLOW.shell("train_parser")


rule parse:
    input: FLOW.input("parse")
    output: FLOW.output("parse")
    wildcard_constraints: **FLOW.constraints("parse")
    params: **FLOW.params("parse")
    threads: FLOW.threads("parse")
    benchmark: FLOW.benchmark("parse")
    resources: **FLOW.resources("parse")
    shell: FLOW.shell("parse")


rule build_label_table:
    input: FLOW.input("build_label_table")
    output: FLOW.output("build_label_table")
    wildcard_constraints: **FLOW.constraints("build_label_table")
    params: **FLOW.params("build_label_table")
    threads: FLOW.threads("build_label_table")
    benchmark: FLOW.benchmark("build_label_table")
    resources: **FLOW.resources("build_label_table")
    shell: FLOW.shell("build_label_table")


rule encode_trees:
    input: FLOW.input("encode_trees")
    output: FLOW.output("encode_trees")
    wildcard_constraints: **FLOW.constraints("encode_trees")
    params: **FLOW.params("encode_trees")
    threads: FLOW.threads("encode_trees")
    benchmark: FLOW.benchmark("encode_trees")
    resources: **FLOW.resources("encode_trees")
    shell: FLOW.shell("encode_trees")
