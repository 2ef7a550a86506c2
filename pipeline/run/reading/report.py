"""The content of a run's report. Each cached property is computed when it is first used."""

import json
import shlex
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.keys import default_path
from pipeline.config.registry import model_spec
from pipeline.errors import InputError
from pipeline.images.opening import ImageLimits
from pipeline.index.exact import evenly_spaced
from pipeline.metrics.summary import DIRECTIONS, MEASURES, spoken
from pipeline.papers.published import every_table
from pipeline.printable import printable_json
from pipeline.report.charts import draw_bars, draw_intervals, draw_logs
from pipeline.report.examples import Answer, Atlas, Example, Examples, Generated, SplitGallery, compare_generators
from pipeline.report.page import render_page
from pipeline.report.photographs import CollectionSample, Photographs, ReportPicture, draw_samples, first_sentence
from pipeline.report.tables import (
    COLUMNS,
    FINDINGS,
    JUDGEMENTS,
    Comparison,
    best_model,
    compare_models,
    count_reasons,
    describe_encoders,
    describe_models,
    duration,
    explain_dashes,
    is_probable,
    measure_rows,
)
from pipeline.run import StageRun
from pipeline.run.reading.results import example_search
from pipeline.storage.commit import read_record
from pipeline.storage.decisions import latest, pair_of, read_decisions
from pipeline.storage.pairs import SplitPairs, split_ids
from pipeline.storage.records import RuleCost, cost_by_rule, read_benchmarks, read_summary
from pipeline.storage.stored_index import open_index
from pipeline.storage.tables import read_table
from pipeline.text.vocabulary import Coverage

LIBRARIES = ("jointspace", "torch", "torchvision", "faiss-gpu", "faiss-cpu", "numpy", "scipy", "h5py", "snakemake")
"""Libraries whose installed versions the report lists."""
ARITHMETIC_PHOTOS = 4
"""Number of photos that a search of `reproduce.arithmetic` finds, as in Kiros et al. 2014, section 3.2."""
MAX_MAP_PHOTOS = 1000
"""Largest number of photos on the map of a run without evaluations."""
MAX_AUDIT_FINDINGS = 24
"""Largest number of findings of the audit that the report shows in each of three groups: findings about single
captions, about photos, and about near-duplicates. The report shows the worst findings of a group."""
SAMPLED_SHARDS = 4
"""Largest number of evenly spaced shards from which the report samples features, for each encoder."""
SAMPLED_ROWS = 512
"""Largest number of evenly spaced rows that the report samples from a shard of features."""
EXAMPLE_LISTS = ("by_sentence", "by_image", "successes", "failures")
"""The attributes of pipeline.report.examples.Examples that are lists of examples."""
INDEXED = ("images", "sentences", "regions", "words")
"""The names of FAISS indexes on a card."""


class RunReport:
    """The content of the report of a run, read from the inputs of the stage `report`. The template page.html shows it.

    `manifest` is the summary of the manifest, and `indexes` has the index of each model. `best` is the index whose
    search results are shown. `picture(row)` returns the thumbnail for a row of the images' table. `published` has the
    tables of papers about this collection.
    """

    def __init__(self, run: StageRun) -> None:
        self.run = run
        self.title = run.config.name
        self.manifest = run.manifest.summary
        self.described, self.judged, self.phrases = (
            [read_record(artefact.commit) for artefact in run.inputs.artefacts(name).values()]
            for name in ("described", "judged", "phrase_rankings")
        )
        self.evaluations = read_summary(run.layout.summary.path)
        self.comparisons = compare_models(self.evaluations)
        collection = run.config.reproduce.collection
        self.published = [table for table in every_table() if table.collection == collection and table.ranks_pairs]
        self.indexes = {name: run.index(name) for name in run.config.models}
        self.cards = [index.card for index in self.indexes.values()]
        # A multi-vector model is shown only if the run has no other model, because such a model must score all pairs.
        single = [name for name, index in self.indexes.items() if index.card.kind == "global"]
        self.has_map = bool(single)
        candidates = single or list(self.indexes)
        self.best_name = best_model(self.evaluations, candidates) if self.evaluations else candidates[0]
        self.best = self.indexes[self.best_name]
        limits = ImageLimits.from_settings(run.config.collection)
        moved = Path(run.photographs.root) != run.manifest.root
        self.picture = Photographs(run.photographs.read, limits, moved, partial(first_sentence, run.manifest))

    def to_html(self) -> str:
        """Render the report as an HTML page."""
        logs = {name: details.get("training_log", {}) for name, details in self.details.items()}
        return render_page(
            "page.html",
            report=self,
            shortened=_shortened,
            charts=draw_logs(logs),
            recall_chart=_draw_recalls(self.comparisons[0]) if self.comparisons else "",
            time_chart=_draw_times(self.costs),
            columns=COLUMNS,
            measures=MEASURES,
            indexed=INDEXED,
            judgements=JUDGEMENTS,
            unmeasured=explain_dashes(self.judged),
        )

    def to_json(self) -> str:
        """Return the numbers of the report as JSON, without its pictures."""
        examples = self.examples
        values = {
            "name": self.title,
            "best_model": examples.model,
            "search": self.search,
            "collection": {"counts": self.manifest["counts"], "splits": self.manifest["splits"]},
            "rejects": self.reasons,
            "coverage": self.coverage,
            "retrieval": self.comparisons,
            "examples": {"split": examples.split, **{name: getattr(examples, name) for name in EXAMPLE_LISTS}},
            "encoders": self.encoders,
            "features": self.health,
            "indices": {
                card.model: {name: value for name, value in card.to_json().items() if name in INDEXED}
                for card in self.cards
            },
            "models": self.models,
            "judged": self.judged,
            "magnitudes": self.magnitudes,
            "phrases": self.phrases,
            "costs": self.costs,
            "versions": self.versions,
        }
        return printable_json(values, lambda value: value.name if isinstance(value, ReportPicture) else vars(value))

    @cached_property
    def search(self) -> str:
        """An example of a search command, or "" if no search can be suggested."""
        example = example_search(self.best)
        return shlex.join(["jointspace", *example]) if example else ""

    @cached_property
    def reasons(self) -> list[dict[str, Any]]:
        return count_reasons(self.run.manifest.rejects())

    @cached_property
    def coverage(self) -> dict[str, Coverage]:
        """The counts of known and unknown words in the dev sentences, as name of a text encoder -> counts.

        The key `tokens` has the counts for the vocabulary of token sequences. Encoders and vocabularies without these
        counts are left out. The result is empty if dev has no sentences.
        """
        learned = self.run.inputs.artefacts("text_encoders")
        measured = {name: self.run.text_encoder(name).details.get("coverage") for name in learned}
        if "vocabulary" in self.run.inputs:
            measured["tokens"] = read_record(self.run.inputs.artefact("vocabulary").path).get("coverage")
        coverage = {name: Coverage(**counts) for name, counts in measured.items() if counts}
        return {name: share for name, share in coverage.items() if share.sentences}

    @cached_property
    def gallery(self) -> SplitGallery:
        """The split whose results come first in the report, with the embeddings of the best model.

        Without evaluations, the result has at most MAX_MAP_PHOTOS photos of the first split of the manifest.
        """
        manifest = self.run.manifest
        if self.comparisons:
            split = self.comparisons[0].split
            pairs = self.run.pairs(split)
        else:
            split = next(iter(manifest.summary["splits"]))
            none = np.empty(0, np.int64)
            pairs = SplitPairs(split_ids(manifest, (split,))["images"][:MAX_MAP_PHOTOS], none, none)
        return SplitGallery(self.run.embeddings(self.best_name), pairs, split, self.picture)

    @cached_property
    def examples(self) -> Examples:
        return self.gallery.examples()

    @cached_property
    def arithmetic(self) -> list[tuple[str, str, list[ReportPicture]]]:
        """The model, the formula and the photos of each search of `reproduce.arithmetic` whose words are known.

        The first photo is the photo of the query, and the others are found (Kiros et al. 2014, Figure 4).
        """
        from pipeline.index.search import Searcher  # Other reports do not need FAISS, which this line imports.

        shown = []
        for model, searches in self.run.config.reproduce.arithmetic.items():
            # Photos that were added to the index are not in the run.
            searcher = Searcher(open_index(self.run.layout.index(model).path, added=False))
            for query, minus, plus in searches:
                with suppress(InputError):
                    first = searcher.images(query, 1)
                    vector = self.run.embeddings(model).read("images", np.array([first[0].row["image_id"]]))
                    hits = searcher.analogy(vector, [minus], [plus], ARITHMETIC_PHOTOS, ARITHMETIC_PHOTOS)
                    rows = self.run.manifest.pick([hit.row["image_id"] for hit in (*first, *hits)])
                    shown.append((model, f"“{query}” − “{minus}” + “{plus}”", list(map(self.picture, rows))))
        return shown

    @cached_property
    def atlas(self) -> Atlas | None:
        return self.gallery.atlas() if self.has_map else None

    @cached_property
    def samples(self) -> list[CollectionSample]:
        return draw_samples(self.run.manifest, self.picture)

    @cached_property
    def audit(self) -> dict[str, Any] | None:
        """The worst findings of each kind in the audit, with images, or None if there is no current audit.

        Captions about which a person has decided are left out.
        """
        if "audit" not in self.run.inputs:
            return None
        table, commit = read_table(self.run.inputs.artefact("audit").path, "audit")
        path = self.run.inputs.path("decisions")
        decisions = latest(read_decisions(path)) if path else {}
        findings = [finding for finding in table.to_pylist() if pair_of(finding) not in decisions]
        captions, photos = (
            [finding for finding in findings if finding["kind"] == kind][:MAX_AUDIT_FINDINGS]
            for kind in ("caption", "captions")
        )
        copies = [finding for finding in findings if finding["other_image"]]
        copies = sorted(copies, key=lambda finding: finding["kind"] != "leak")[:MAX_AUDIT_FINDINGS]
        for finding in [*captions, *photos, *copies]:
            images = [finding[name] for name in ("image_id", "other_image_id") if finding[name] is not None]
            finding["pictures"] = list(map(self.picture, self.run.manifest.pick(images)))
        counts = Counter(finding["kind"] for finding in findings if is_probable(finding))
        return {
            "counts": {text: counts[kind] for kind, text in FINDINGS.items()},
            "captions": captions,
            "photos": photos,
            "reliable": sum(bool(finding.get("reliable")) for finding in findings if finding["kind"] == "captions"),
            "copies": copies,
            **commit.details,
        }

    @cached_property
    def encoders(self) -> list[dict[str, Any]]:
        return describe_encoders(self.cards)

    @cached_property
    def health(self) -> list[dict[str, Any]]:
        """Statistics of the stored features of each encoder.

        Up to SAMPLED_ROWS rows are taken from each of up to SAMPLED_SHARDS shards, whose SHA-256 is checked. `bytes` is
        the size of the features of all shards, which is extrapolated from the sampled shards.
        """
        run = self.run
        n_images = run.manifest.n_images
        n_shards = run.manifest.n_shards
        health = []
        for name in run.inputs.all_shards("features"):
            shards = [run.features.open(name, int(number)) for number in evenly_spaced(n_shards, SAMPLED_SHARDS)]
            sample = np.concatenate([shard["features"][evenly_spaced(shard.rows, SAMPLED_ROWS)] for shard in shards])
            bytes_per_row = sum(shard.commit.bytes for shard in shards) / sum(shard.rows for shard in shards)
            health.append(
                {
                    "encoder": name,
                    "rows": n_images,
                    "shards": n_shards,
                    "dim": sample.shape[1],
                    "dtype": str(sample.dtype),
                    "bytes": round(bytes_per_row * n_images),
                    **measure_rows(sample.astype(np.float32)),
                }
            )
        return health

    @cached_property
    def tradeoffs(self) -> dict[str, dict[str, Any]]:
        """The measurements by which the type of each FAISS index of the best model was chosen.

        The keys are the names of the indexes, such as `images`. Indexes without such measurements are left out.
        """
        suffix = ".tradeoff.json"
        names = sorted(name for name in self.best.card.files if name.endswith(suffix))
        return {name.removesuffix(suffix): json.loads(self.best.first.read(name)) for name in names}

    @cached_property
    def details(self) -> dict[str, Mapping[str, Any]]:
        """The stored details of each model."""
        return {name: index.first.model().details for name, index in self.indexes.items()}

    @cached_property
    def models(self) -> list[dict[str, Any]]:
        classes = {name: model_spec(name).load() for name in {card.registered for card in self.cards}}
        about = {name: " ".join((it.__doc__ or "").split("\n\n")[0].split()) for name, it in classes.items()}
        return describe_models(self.details, about)

    @cached_property
    def alignments(self) -> list[tuple[list[ReportPicture], dict[str, Any]]]:
        aligned = self.run.config.aligned_splits(self.run.config.align.splits)
        if not aligned:
            return []
        # The import loads torch, which reports without alignments do not need.
        from pipeline.run.reading.pictures import draw_alignments

        return [draw_alignments(self.run, *names) for names in aligned]

    @cached_property
    def sheets(self) -> list[ReportPicture]:
        """Contact sheets of photos with their regions, alignments and phrases. There are none for a run without regions
        and phrases."""
        config = self.run.config
        phrases = config.phrase_splits(config.phrases.splits)
        if not (config.regions.encoders or phrases):
            return []
        from pipeline.run.reading.pictures import draw_phrases, draw_regions

        sheets = [draw_regions(self.run, encoder) for encoder in config.regions.encoders]
        sheets += [sheet for drawn, _ in self.alignments for sheet in drawn]
        return sheets + [sheet for names in phrases for sheet in draw_phrases(self.run, *names)]

    @cached_property
    def magnitudes(self) -> list[dict[str, Any]]:
        """The words with the longest and the shortest vectors, for each multi-vector model and split."""
        return [words for _, words in self.alignments]

    @cached_property
    def generated(self) -> list[Generated]:
        return compare_generators(self.described, self.run.manifest.pick, self.picture)

    @cached_property
    def costs(self) -> list[RuleCost]:
        """The time and memory of each rule. The list is empty if Snakemake has measured no job."""
        return cost_by_rule(read_benchmarks(self.run.layout.benchmarks))

    @property
    def provenance(self) -> list[str]:
        """The date of the results, the seed, the name of the configuration file, and the git commit of the program.

        The date is the date of the evaluations, or of the manifest if there are none. The git commit is missing if the
        program does not run from a git checkout.
        """
        layout = self.run.layout
        made = (layout.summary if self.evaluations else layout.manifest).path.stat().st_mtime
        seed = f"seed {self.run.config.seed}"
        checkout = default_path().parents[1]
        commit = []
        # git may not be installed, or may refuse a checkout of another owner.
        with suppress(OSError, subprocess.CalledProcessError):
            if (checkout / ".git").exists():
                command = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
                commit = [f"commit {subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()}"]
        return [f"{date.fromtimestamp(made):%d %B %Y}", seed, layout.config.name, *commit]

    @property
    def versions(self) -> dict[str, str]:
        """The installed versions of the libraries that results depend on."""
        versions = {}
        for library in LIBRARIES:
            with suppress(PackageNotFoundError):
                versions[library] = version(library)
        return versions


def _shortened(example: Example) -> list[Answer]:
    """Return three results of an example: the first three, or the first two and the best right result if none of the
    first three is right. If the example has no right result, return the first three."""
    right = next((answer for answer in example.answers if answer.right), None)
    first = list(example.answers[:3])
    return first if right is None or right in first else [*first[:2], right]


def _draw_recalls(comparison: Comparison) -> str:
    """Draw recall@10 of each model in both directions, and return the SVG. The model for which the sum of the two
    recalls is greatest comes first."""
    found = {model: [own[one]["recall@10"] for one in DIRECTIONS] for model, own in comparison.cells.items()}
    ordered = sorted(found, key=lambda model: -sum(cell.value for cell in found[model]))
    rows = {model: [(cell.value, cell.interval) for cell in found[model]] for model in ordered}
    return draw_intervals(f"Recall@10 of {len(rows)} models with 95% intervals", rows, list(map(spoken, DIRECTIONS)))


def _draw_times(costs: Sequence[RuleCost]) -> str:
    """Draw the time of each stage as a bar, and return the SVG. The longest time comes first. Stages without a measured
    time are left out. Return "" if no stage has a measured time."""
    took = {row["rule"].replace("_", "-"): row["seconds"] for row in costs if row["seconds"]}
    rows = {name: (seconds, duration(seconds)) for name, seconds in sorted(took.items(), key=lambda item: -item[1])}
    return draw_bars("Time by stage", rows) if rows else ""
