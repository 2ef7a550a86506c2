"""`train-parser`: a spaCy tagger and dependency parser learned from a treebank."""

import logging
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.run import Inputs, Job, Outside, Run, Stage

log = logging.getLogger(__name__)


def train_parser(run: Run, job: Job) -> None:
    """Train a tagger and a dependency parser on the CoNLL-U files of the section parse.treebank."""
    from tqdm import tqdm

    from pipeline.storage.parsers import publish_parser, require_own
    from pipeline.storage.trees import text_lines
    from pipeline.text.conllu import read_conllu
    from pipeline.text.parser_training import ParserTraining, judge

    settings = run.config
    require_own(job.path)
    files = _treebank(settings)
    treebanks = {
        part: [entry.parse for entry in read_conllu(text_lines(path), str(path))] for part, path in files.items()
    }

    chosen = settings.parse.training.model_dump()
    training = ParserTraining(treebanks["train"], treebanks["dev"], settings.parse.training, settings.seed)
    history = []
    for agreement in tqdm(training.learn(), "train-parser", chosen["epochs"], unit=" epochs", disable=None):
        history.append(agreement.to_dict())
        log.info("epoch %d: dev %s", len(history), history[-1])

    test = judge(training.pipeline, treebanks["test"])
    used = {"training": chosen, "seed": settings.seed, "spacy": job.inputs["spacy"]}
    sources = {part: job.inputs[part] for part in files}
    details = {"inputs": sources, "settings": used, "dev": history, "test": test.to_dict()}
    publish_parser(job.path, training.pipeline.to_disk, job.fingerprint, details)
    log.info("test, with the treebank's tokens: %s", test.to_dict())


def _treebank(config) -> dict[str, Path]:
    """The files of the treebank's parts. Raises UsageError for one that the configuration does not name."""
    named = config.parse.treebank.model_dump()
    if missing := [part for part, name in named.items() if name is None]:
        raise UsageError(
            f"parse.treebank.{missing[0]} is null; name a CoNLL-U file under weights_root, or set parse.pipeline"
        )
    return {part: Path(config.weights_root) / name for part, name in named.items()}


def _reads(config, layout) -> Inputs:
    return {part: Outside(path) for part, path in _treebank(config).items()}


def _spacy(run: Run) -> dict[str, str]:
    """The version of spaCy."""
    from pipeline.text.parsing import require_spacy

    return {"spacy": require_spacy().__version__}


STAGE = Stage(
    train_parser,
    version=2,
    memory=3000,
    threads=8,
    keys=lambda config: {"seed": config.seed, "training": config.parse.training.model_dump()},
    reads=_reads,
    also=_spacy,
    writes=lambda layout: layout.parser,
)
