"""The ranking of training snippets for a region by the generator `ranked-snippets` is compared with a naive loop."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from synthetic_text import make_material, make_vocabulary

from pipeline.generate.beam import BeamSearch
from pipeline.generate.corpus import Corpus
from pipeline.generate.generator import Ranker, Sources
from pipeline.generate.snippets import RankedSnippets
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.fragment_models import DVSA
from pipeline.models.neural.task import RegionView
from pipeline.text.vocabulary import encode_tokens

SHAPE = {"dimensions": 4, "hidden": 3, "dropout": 0, "sum": "words"}


def test_the_best_snippet_has_the_greatest_sum_of_products() -> None:
    """The two best snippets of a restored generator for each of three regions, and their scores, equal the results of a
    loop over all snippets. The score is equation 8 with one region, the sum of v . s_t over the words t of a snippet.
    Snippets with the same words get their mean score."""
    rng = np.random.default_rng(0)
    view = RegionView(ImageView(("eyes",), (6,), ()), geometry=False)
    words = rng.standard_normal((9, 5)).astype(np.float32)
    model = DVSA.build(view, rng.standard_normal(6).astype(np.float32), 0.7, words, SHAPE, seed=0)
    material = make_material({"by": "features", "distance": "cosine"})
    vectors = rng.standard_normal((len(material.train.owners), 4)).astype(np.float32)
    made = RankedSnippets.learn(replace(material, ranker=Ranker("dvsa", model, vectors))).generator
    twin = RankedSnippets.from_parts(made.settings(), made.tensors())
    texts = ["a dog", "here"]
    corpus = Corpus(texts, encode_tokens(texts, make_vocabulary()), make_vocabulary())
    sources = Sources(corpus, BeamSearch(1, 0, 9), None, 1, 0, None, None)
    x = rng.standard_normal((3, 6)).astype(np.float32)

    terms = make_vocabulary().terms
    groups = defaultdict(list)
    for row, ids in enumerate(material.train.sentences):
        groups[tuple(terms[i] for i in ids)].append(vectors[row])
    weight, bias = (made.model.tensors()[f"regions.{name}"] for name in ("weight", "bias"))
    for one, found in zip(x, twin.generate_captions({"eyes": x}, sources, 2), strict=True):
        v = weight @ ((one - model.tensors()["regions.mean"]) * np.float32(0.7)) + bias
        scores = {snippet: float(v @ np.mean(own, axis=0)) for snippet, own in groups.items()}
        best = sorted(scores, key=scores.__getitem__, reverse=True)[:2]
        assert [one.words for one in found] == best
        # The gallery of the generator is stored in half precision, so its scores are not exact.
        assert [one.score for one in found] == pytest.approx([scores[one] for one in best], abs=1e-2)
