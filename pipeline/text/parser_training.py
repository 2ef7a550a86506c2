"""spaCy's own training of a tagger and a dependency parser, on the sentences of treebanks."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import InputError
from pipeline.text.conllu import ROOT, Parse
from pipeline.text.parsing import require_spacy

LANGUAGE = "en"
EVALUATE_STEPS, STEP_WORDS = 200, 100
"""Most steps between two judgements on dev, and words in the first steps: a small treebank is judged in each epoch."""
SCORES = ("dep_uas", "dep_las", "tag_acc")


def write_corpus(parses: Sequence[Parse], path: Path) -> int:
    """A treebank as a file that spaCy trains on; returns its words. Raises InputError where it has no sentence."""
    require_spacy()
    from spacy.tokens import Doc, DocBin
    from spacy.vocab import Vocab

    vocab, corpus = Vocab(), DocBin()
    for parse in parses:
        heads = [number if head == ROOT else head for number, head in enumerate(parse.heads)]
        arcs = zip(parse.heads, parse.relations, strict=True)
        relations = ["ROOT" if head == ROOT else relation for head, relation in arcs]
        if len(parse):
            words, spaces, tags = list(parse.words), list(parse.spaces), list(parse.xpos)
            corpus.add(Doc(vocab, words=words, spaces=spaces, tags=tags, heads=heads, deps=relations))
    if not len(corpus):
        raise InputError(f"the {path.stem} treebank has no sentence; give a CoNLL-U file with some")
    corpus.to_disk(path)
    return sum(map(len, parses))


def train(folder: Path, words: int, epochs: int, seed: int) -> Path:
    """Train on the corpora `train.spacy`, of so many `words`, and `dev.spacy` in `folder`; returns the folder of the
    pipeline that was best on dev."""
    from spacy.cli.init_config import init_config
    from spacy.cli.train import train as train_by_spacy

    config = init_config(lang=LANGUAGE, pipeline=["tagger", "parser"], optimize="efficiency", silent=True)
    config["paths"] |= {part: str(folder / f"{part}.spacy") for part in ("train", "dev")}
    config["system"]["seed"] = seed
    config["components"]["tagger"]["label_smoothing"] = 0.0  # which a treebank of one tag does not bear
    frequency = max(1, min(EVALUATE_STEPS, words // STEP_WORDS))
    config["training"] |= {"max_epochs": epochs, "max_steps": 0, "eval_frequency": frequency}
    config.to_disk(folder / "config.cfg")
    train_by_spacy(folder / "config.cfg", folder / "trained")
    return folder / "trained" / "model-best"


def judge(pipeline: Path, corpus: Path) -> dict[str, float]:
    """Percent of words with the right head (`dep_uas`), the right head and relation (`dep_las`), and the right tag
    (`tag_acc`), as spaCy counts them, with the treebank's own words."""
    import spacy
    from spacy.training import Corpus

    loaded = spacy.load(pipeline)
    scores = loaded.evaluate(list(Corpus(corpus)(loaded)))
    return {name: round(100 * scores[name], 2) for name in SCORES}
