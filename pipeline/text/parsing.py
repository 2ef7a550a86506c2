"""Parses of texts: by spaCy, or from another parser's files; and the training of a spaCy parser."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import InputError, UsageError
from pipeline.text.dependencies import ROOT, ROOT_RELATION, UNSPECIFIED, Entry, Parse
from pipeline.text.phrase_trees import PhraseTree, universal
from pipeline.text.tree_conversions import EMPTY, Parsed, derive_dependencies, derive_phrases, fall_back
from pipeline.text.trees import letters

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc


FURTHER_ROOT = "parataxis"
"""Relation of a second sentence's root to the first's, if the parser splits a text into two sentences."""
MAX_WORDS = 100
"""Longer sentences become chains."""


def require_spacy() -> Any:
    """The module spacy; UsageError says how to install it."""
    try:
        import spacy
    except ImportError:
        raise UsageError("this needs spaCy: pip install 'jointspace[parse]', or set parse.engine to files") from None
    logging.getLogger("spacy").setLevel(logging.ERROR)
    return spacy


def parse_texts(load: "Callable[[], Language]", texts: Sequence[str]) -> list[Parsed]:
    """The trees of `texts` by the spaCy pipeline that `load` gives; texts of more than MAX_WORDS words become
    chains."""
    pipeline = load()
    docs = [pipeline.make_doc(" ".join(text.split())) for text in texts]
    parses = map(_to_parse, pipeline.pipe([doc for doc in docs if 0 < len(doc) <= MAX_WORDS]))
    parsed = []
    for text, doc in zip(texts, docs, strict=True):
        if 0 < len(doc) <= MAX_WORDS:
            parse = next(parses)
            parsed.append(Parsed(parse, derive_phrases(parse), None))
        else:
            parsed.append(fall_back(text, f"more than {MAX_WORDS} words" if len(doc) else EMPTY))
    return parsed


def _to_parse(doc: "Doc") -> Parse:
    heads = [ROOT if token.head.i == token.i else token.head.i for token in doc]
    relations = [ROOT_RELATION if token.head.i == token.i else token.dep_ or UNSPECIFIED for token in doc]
    for other in [position for position, head in enumerate(heads) if head == ROOT][1:]:
        heads[other], relations[other] = heads.index(ROOT), FURTHER_ROOT
    xpos = [token.tag_ or "_" for token in doc]
    upos = [token.pos_ or universal(tag) for token, tag in zip(doc, xpos, strict=True)]
    words, spaces = [token.text for token in doc], [bool(token.whitespace_) for token in doc]
    return Parse(tuple(words), tuple(upos), tuple(xpos), tuple(heads), tuple(relations), tuple(spaces))


ID = "sent_id"
SHOWN = 200
"""Characters of the parser's words quoted in a mismatch."""


def sentence_keys(names: Sequence[str], first: int) -> list[list[str]]:
    """The ids that each sentence may have in a file, given its image's name; an image's sentences are adjacent.

    They are `name#k` for sentence k of the image, with or without the folders in its name, and the number of the
    sentence, counted from `first`.
    """
    keys, before, k = [], None, 0
    for number, name in enumerate(names, start=first):
        k = k + 1 if name == before else 0
        before = name
        keys.append([f"{name}#{k}", f"{name.rpartition('/')[2]}#{k}", str(number)])
    return keys


def index_parses(entries: Iterable[Entry], wanted: Collection[str], name: str) -> dict[str, Parse]:
    """Id -> parse for the `wanted` ids in the file `name`; the id is the comment sent_id.

    Raises InputError for a sentence without an id, a repeated id, or a file without sentences.
    """
    return _index(((entry.comments.get(ID), entry.parse) for entry in entries), wanted, name)


def index_trees(
    trees: Iterable[tuple[str | None, PhraseTree]], wanted: Collection[str], name: str
) -> dict[str, PhraseTree]:
    """The same for brackets, whose ids precede them; without ids, trees are numbered from 0."""
    return _index(((str(n) if key is None else key, tree) for n, (key, tree) in enumerate(trees)), wanted, name)


def _index(pairs: Iterable[tuple[str | None, object]], wanted: Collection[str], name: str) -> dict:
    index, seen = {}, set()
    for number, (key, value) in enumerate(pairs, start=1):
        if key is None:
            raise InputError(f"{name}: sentence {number} has no comment '# {ID} = ...'; add one")
        if key in seen:
            raise InputError(f"{name}: sentence {number} has the id {key} of an earlier one; make the ids unique")
        seen.add(key)
        if key in wanted:
            index[key] = value
    if not seen:
        raise InputError(f"{name} holds no sentence; give the file that your parser wrote")
    return index


def match(text: str, keys: Iterable[str], parses: Mapping[str, Parse], trees: Mapping[str, PhraseTree]) -> Parsed:
    """Both trees of the sentence with one of the ids `keys`; a missing one is derived from the other.

    A sentence with neither, or with trees over other words, falls back to chains.
    """
    keys = list(keys)
    parse = next((parses[key] for key in keys if key in parses), None)
    tree = next((trees[key] for key in keys if key in trees), None)
    if not letters(text):
        return fall_back(text, EMPTY)
    if parse is None and tree is None:
        return fall_back(text, "no parse of this id")
    for parsed in (parse, tree):
        if parsed is not None and letters("".join(parsed.words)) != letters(text):
            return fall_back(text, f"{len(parsed.words)} other words: {' '.join(parsed.words)[:SHOWN]}")
    if parse is None:
        assert tree is not None
        parse = derive_dependencies(tree)
    return Parsed(parse, derive_phrases(parse) if tree is None else tree, None)


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
