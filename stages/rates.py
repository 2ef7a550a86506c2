"""Rates of this machine on a few photographs and sentences: a run's own, or drawn ones where there is none yet."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from stages import inputs, texts

if TYPE_CHECKING:
    from pipeline.images.preprocess import Photograph
    from pipeline.plan.rates import Rates
    from pipeline.run import Run

SAMPLE_SENTENCES = 50000
DRAWN_SIDES, DRAWN_QUALITY = (500, 375), 85
"""Pixels and JPEG quality of drawn photographs."""
DRAWN_WORDS, DRAWN_LENGTH = 5000, 10
"""Different words in drawn sentences, and words of each."""


class SamplePhotographs(NamedTuple):
    """Some photographs, and what reads the bytes of one by its location."""

    listed: "list[Photograph]"
    read: Callable[..., bytes]


def measure(
    run: "Run", seen: SamplePhotographs, sentences: list[str]
) -> "tuple[Rates, dict[str, int], dict[str, int]]":
    """The rates, and the dimensions of the encoders of images and of texts."""
    from pipeline import runtime
    from pipeline.plan.rates import LIGHT_MODULES, TORCH_MODULES, Rates, measure_flops, measure_start

    measured, dims = measure_images(run, seen)
    encoded, text_dims = measure_texts(run, sentences)
    flops, share = measure_flops(runtime.threads())
    starts = {"starts": measure_start(TORCH_MODULES), "starts_light": measure_start(LIGHT_MODULES)}
    return Rates(**measured, **encoded, flops=flops, share=share, **starts), dims, text_dims


def own_photographs(run: "Run", count: int) -> SamplePhotographs:
    """Of the run, evenly spaced."""
    from pipeline.images.preprocess import Photograph
    from pipeline.index.vectors import evenly_spaced

    rows = run.manifest.pick(evenly_spaced(run.manifest.n_images, count))
    return SamplePhotographs([Photograph.from_row(row) for row in rows], run.images.read)


def draw_photographs(count: int, seed: int = 0) -> SamplePhotographs:
    """Smooth noise with a grain, as JPEGs."""
    import hashlib
    import io

    import numpy as np
    from PIL import Image

    from pipeline.images.preprocess import Photograph

    rng, drawn = np.random.default_rng(seed), {}
    for number in range(count):
        smooth = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).resize(
            DRAWN_SIDES, Image.Resampling.BICUBIC
        )
        grain = rng.integers(-8, 9, (*DRAWN_SIDES[::-1], 3))
        file = io.BytesIO()
        Image.fromarray(np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8)).save(
            file, "JPEG", quality=DRAWN_QUALITY
        )
        drawn[f"{number}.jpg"] = file.getvalue()
    listed = [Photograph(name, hashlib.sha256(data).hexdigest(), (name, None, None)) for name, data in drawn.items()]
    return SamplePhotographs(listed, lambda path, *_: drawn[path])


def draw_sentences(count: int = SAMPLE_SENTENCES, seed: int = 0) -> list[str]:
    """Words of a few letters, by Zipf's law."""
    import numpy as np

    rng = np.random.default_rng(seed)
    letters = rng.integers(ord("a"), ord("z") + 1, (DRAWN_WORDS, 6)).astype(np.uint8)
    words = np.array([bytes(word[: 2 + number % 5]).decode() for number, word in enumerate(letters)])
    chances = 1 / np.arange(1, DRAWN_WORDS + 1)
    drawn = words[rng.choice(DRAWN_WORDS, (count, DRAWN_LENGTH), p=chances / chances.sum())]
    return [" ".join(sentence) for sentence in drawn]


def measure_images(run: "Run", seen: SamplePhotographs) -> tuple[dict, dict[str, int]]:
    """What Rates says of images (None for an encoder that cannot be made yet), and the encoders' dimensions."""
    from functools import partial
    from operator import itemgetter

    from pipeline import runtime
    from pipeline.images.decode import ImageLimits, inspect
    from pipeline.images.preprocess import View, load
    from pipeline.plan.rates import extraction_rate, rate
    from pipeline.specs.stored import restore_encoder

    settings, (photographs, read), cores = run.config, seen, runtime.threads()
    extract, limits = settings.extract, ImageLimits.from_settings(settings.collection)
    looked = rate(lambda: map(partial(inspect, read, limits), map(itemgetter(2), photographs)), len(photographs))
    networks = [chosen for chosen in settings.encoders if chosen.spec.reads == "pixels"]
    rates = {what: dict.fromkeys(chosen.name for chosen in networks) for what in ("images", "decoded", "forward")}
    dims, material = {}, inputs.read_material(run)
    images = run.images_per_job if run.layout.manifest.commit.exists() else 0
    for chosen in networks:
        if run.layout.encoder(chosen.name).commit.exists():
            parameters = run.encoder(chosen.name)
            encoder = restore_encoder(parameters.settings, parameters.tensors)
        elif chosen.spec.learned or "untrained" not in chosen.spec.weights:
            continue
        else:
            untrained = chosen.model_copy(update={"weights": "untrained", "file": None, "sha256": None})
            encoder = chosen.spec.load().prepare(untrained, material)
        work = encoder.work(settings.device, extract.precision, run.batch_size, extract.engine, images)
        views, pictures = [View(encoder.preprocessing, work.describe)], []
        decoded = rate(
            lambda v=views, p=pictures: (p.extend(load(read, limits, v, one)) for one in photographs), len(photographs)
        )
        dims[chosen.name] = next(work.extractor(pictures[: run.batch_size])).shape[1]
        forward = rate(lambda w=work, p=pictures: w.extractor(p), len(pictures))
        gpu = work.extractor.plan.device.type != "cpu"
        processes = min(cores, run.decoders or 1)
        rates["decoded"][chosen.name], rates["forward"][chosen.name] = decoded, forward
        rates["images"][chosen.name] = extraction_rate(decoded, forward, processes, gpu)
    return {**rates, "inspected": looked * cores}, dims


def measure_texts(run: "Run", sentences: list[str]) -> tuple[dict, dict[str, int]]:
    """What Rates says of text encoders (None for one that cannot be made yet), and their dimensions, by `sentences`."""
    from pipeline.plan.rates import rate
    from pipeline.text.tokens import TermSettings, make_analyzer
    from pipeline.text.vocabulary import build_vocabulary

    lemmas = TermSettings(True, "words", True, (), 1)
    found = {"encoded": {}, "first_text": 1 / rate(lambda: [make_analyzer(lemmas)("word")], 1)}
    dims = {}
    for chosen in (one for one in run.config.text_encoders if one.spec.reads == "texts"):
        if run.layout.text_encoder(chosen.name).commit.exists():
            made = texts.open_text_encoder(run, chosen.name)
        elif chosen.own.corpus or chosen.spec.extra:
            found["encoded"][chosen.name] = None  # its word vectors are yet to be learned, its network to be fetched
            continue
        else:
            given = {"texts": lambda: sentences, "learn_vocabulary": partial(build_vocabulary, sentences)}
            material = replace(texts.read_text_material(run, chosen.name), **given)
            made = chosen.spec.load().prepare(chosen, material)
        found["encoded"][chosen.name] = rate(lambda e=made: [e.encode(sentences)], len(sentences))
        dims[chosen.name] = made.dim
    return found, dims
