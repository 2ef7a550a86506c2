"""`compare-sentences`: which sentences of one image a model holds apart (Socher et al. 2014, section 6.6)."""

from pipeline.run import Inputs, Job, Run, Stage

SPLIT = "test"


def compare_sentences(run: Run, job: Job) -> None:
    """Rank the sentences of each image of test among each other's neighbours, by their verbs and lengths."""
    import numpy as np

    from pipeline.evaluate.sentence_pairs import measure_pairs
    from pipeline.metrics.retrieval import TIES, Bootstrap
    from pipeline.metrics.similarity import pair_ranks
    from pipeline.storage.commit import publish_record
    from pipeline.storage.trees import ParseShards
    from pipeline.text.conllu import read_conllu

    bootstrap, pairs = Bootstrap(run.config.evaluate.bootstrap, run.config.seed), run.pairs(SPLIT)
    parses = ParseShards(run.manifest, run.layout.parses.folder)
    shards = [parses.open(number) for number in range(run.manifest.n_shards)]
    entries = [entry for shard in shards for entry in read_conllu(shard.conllu, str(shard.path))]
    chosen = [entries[row] for row in pairs.sentence_id]
    verbs = np.array([-1 if "fallback" in one.comments else int("VERB" in one.parse.upos) for one in chosen])
    lengths = np.array([sum(tag != "PUNCT" for tag in one.parse.upos) for one in chosen])

    models = {}
    for name in _models(run.config):
        embeddings = run.embeddings(name)
        embeddings.require_unseen(SPLIT)
        found, ranks = pair_ranks(
            embeddings.read("sentences", pairs.sentence_id), pairs.owners, embeddings.metric
        )  # fmt: skip
        measured = measure_pairs(found, ranks, pairs.owners, verbs, lengths, bootstrap)
        for one in measured["worst_pairs"]:
            one["texts"] = [chosen[row].comments["text"] for row in one["sentences"]]
            one["sentences"] = pairs.sentence_id[one["sentences"]].tolist()
        models[name] = measured
    about = {"split": SPLIT, "ties": TIES, "bootstrap": vars(bootstrap)}
    publish_record(job.path, {**about, "models": models}, provenance=job.provenance)


def _models(config) -> list[str]:
    """Those that give each sentence one vector made of its words."""
    return [name for name in config.models if (spec := config.model(name).spec).words and not spec.multi_vector]


def _reads(config, layout) -> Inputs:
    embeddings = {f"embeddings/{name}": layout.embeddings(name) for name in _models(config)}
    return {"manifest": layout.manifest, "parses": layout.parses, **embeddings}


STAGE = Stage(
    compare_sentences,
    version=2,
    choices=lambda config: [()] if config.reproduce.trees else [],
    keys=lambda config: {"seed": config.seed, "bootstrap": config.evaluate.bootstrap, "models": _models(config)},
    reads=_reads,
    writes=lambda layout: layout.sentence_pairs,
)
