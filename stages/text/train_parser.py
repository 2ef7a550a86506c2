"""`train-parser`: a spaCy tagger and dependency parser learned from a treebank."""

import logging
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.run import Inputs, Job, Outside, Run, Stage

log = logging.getLogger(__name__)


def train_parser(run: Run, job: Job) -> None:
    """Train a spaCy tagger and dependency parser on the CoNLL-U files of parse.treebank."""
    import shutil

    from pipeline.storage.parsers import publish_parser
    from pipeline.storage.texts import text_lines
    from pipeline.text.dependencies import read_conllu
    from pipeline.text.parsing import judge, train, write_corpus

    settings = run.config
    files = _treebank(settings)
    work = job.path / ".training"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        corpora = {part: work / f"{part}.spacy" for part in files}
        words = {
            part: write_corpus([entry.parse for entry in read_conllu(text_lines(path), str(path))], corpora[part])
            for part, path in files.items()
        }
        trained = train(work, words["train"], settings.parse.training.epochs, settings.seed)
        scores = {part: judge(trained, corpora[part]) for part in ("dev", "test")}
        log.info("with the treebank's tokens: %s", scores)
        used = {"training": settings.parse.training.model_dump(), "seed": settings.seed, "spacy": job.inputs["spacy"]}
        publish_parser(job.path, trained, {"settings": used, **scores}, job.provenance)
    finally:
        shutil.rmtree(work, ignore_errors=True)


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
    version=4,
    keys=lambda config: {"seed": config.seed, "training": config.parse.training.model_dump()},
    reads=_reads,
    also=_spacy,
    writes=lambda layout: layout.parser,
)
