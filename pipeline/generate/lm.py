"""`lbl`, `mnlm` and `sc-nlm`: log-bilinear language models, and descriptions by ranked candidates (Kiros et al.
2014)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pipeline.device import place
from pipeline.generate.candidates import rank_candidates
from pipeline.generate.describing import Description, Sources
from pipeline.generate.framing import log_frequencies
from pipeline.generate.logbilinear import LogBilinear, LogBilinearSizes, Multiplicative, StructureContent
from pipeline.generate.material import HeldOut, Learned, Material, require_space
from pipeline.generate.space import JointSpace
from pipeline.generate.tagging import TAGS, require_tagger
from pipeline.generate.training import perplexity_of, train
from pipeline.generate.windows import Windows, windows
from pipeline.models.neural.networks import arrays_of
from pipeline.models.neural.training import seeded
from pipeline.text.sequences import Tokens, encode_tokens
from pipeline.text.vocabulary import Vocabulary

BLOCK = 512
"""Sentences that are judged at once."""


@dataclass(frozen=True)
class LanguageText:
    """Sentences to learn from: `tokens` of m, what errors call them, `names` (m,), their vectors `u` (m, c) in the
    joint space, and `tags`, a part of speech for every word, where a model takes them."""

    tokens: Tokens
    names: np.ndarray
    u: np.ndarray
    tags: Tokens | None

    @classmethod
    def of(cls, texts: Sequence[str], vocabulary: Vocabulary, space: JointSpace) -> "LanguageText":
        """`texts` given their own vectors, without tags; one without words is left out. Names are rows of `texts`."""
        tokens = encode_tokens(texts, vocabulary)
        kept = np.flatnonzero(tokens.lengths)
        return cls(tokens.take(kept), kept, space.sentences([texts[row] for row in kept]), None)


class LanguageModel:
    """A log-bilinear network and the structures, sequences of parts of speech, that it has met in training."""

    network_type: ClassVar[type[LogBilinear]]
    in_space = True

    def __init__(self, encoders: tuple[str, ...], network: LogBilinear, structures: Tokens | None) -> None:
        self.encoders, self.structures = encoders, structures
        self.network = network.eval()

    @classmethod
    def learn(cls, material: Material) -> Learned:
        """The model trained on the training sentences and the extra ones, all embedded in the joint space."""
        settings, words = material.settings, len(material.vocabulary.terms)
        texts = {"train": [*material.texts["train"], *material.extra], "dev": material.texts["dev"]}
        space = require_space(material.space)
        text = {split: LanguageText.of(found, material.vocabulary, space) for split, found in texts.items()}
        if cls.network_type.structured:
            tagger = require_tagger(material.treebank, material.seed)
            terms = material.vocabulary.terms
            text = {split: replace(one, tags=tagger.tag(one.tokens, terms)) for split, one in text.items()}
        chosen = {name: getattr(settings, name) for name in ("context", "dimensions", "factors", "ahead", "dropout")}
        sizes = LogBilinearSizes(condition=text["train"].u.shape[1], tags=len(TAGS), **chosen)
        frequencies = log_frequencies(text["train"].tokens, words + 2)
        with seeded(material.seed):
            network = cls.network_type(sizes, torch.tensor(frequencies))
        network.precision = material.precision
        model = cls(material.view.encoders, network, text["train"].tags).to(material.device)
        log = train(
            network, lambda rows: model._batch(text["train"], rows), text["train"].names,
            lambda: model.perplexity(text["dev"]), settings, material.seed, material.checkpoint, material.after_step,
        )  # fmt: skip
        network.precision = torch.float32
        return Learned(model, log)

    def to(self, device: torch.device) -> "LanguageModel":
        """This generator, whose network computes on `device` from now on."""
        self.network.to(device)
        return self

    @property
    def boundary(self) -> int:
        return len(self.network.bias) - 1

    def _batch(self, text: LanguageText, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        tags = text.tags.take(rows) if self.network.structured else None
        sizes = self.network.sizes
        found: Windows = windows(text.tokens.take(rows), self.boundary, sizes.context, tags, sizes.tags, sizes.ahead)
        return found.context, found.targets, torch.from_numpy(text.u[rows])[found.sentences], found.tags

    def perplexity(self, text: LanguageText) -> float:
        """Of the sentences of `text`, over words and ENDs, given its vectors; unknown words are one word."""
        losses, counts = [], []
        with torch.inference_mode():
            for start in range(0, len(text.tokens), BLOCK):
                batch = self._batch(text, np.arange(start, min(start + BLOCK, len(text.tokens))))
                batch = place(batch, self.network.bias.device)
                losses.append(self.network(*batch).item())
                counts.append(len(batch[1]))
        return perplexity_of(losses, counts)

    def perplexities(self, held_out: HeldOut) -> dict[str, float]:
        """Of sentences that it has not learned from, given their own vectors as in training, and their images'."""
        space, pairs = require_space(held_out.space), held_out.pairs
        text = LanguageText.of(held_out.texts, held_out.vocabulary, space)
        if self.network.structured:
            tagger = require_tagger(held_out.treebank, held_out.seed)
            text = replace(text, tags=tagger.tag(text.tokens, held_out.vocabulary.terms))
        images = space.images(pairs.images(np.arange(pairs.n_images)))[pairs.owners[text.names]]
        return {"given_sentence": self.perplexity(text), "given_image": self.perplexity(replace(text, u=images))}

    def describe(self, features: Mapping[str, np.ndarray], sources: Sources, count: int) -> list[list[Description]]:
        """The best of many candidates for every image; scores are those of pipeline.generate.candidates."""
        return rank_candidates(self.network, self.structures, sources.space.images(features), sources, count)

    def settings(self) -> dict[str, Any]:
        return {"encoders": list(self.encoders), **asdict(self.network.sizes)}

    def tensors(self) -> dict[str, np.ndarray]:
        tensors = arrays_of(self.network)
        if self.structures is not None:
            tensors |= {
                "structures/ids": self.structures.ids.astype(np.uint8),
                "structures/offsets": self.structures.offsets,
            }
        return tensors

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "LanguageModel":
        """The model that `settings` and `tensors` came from."""
        sizes = LogBilinearSizes(**{field.name: settings[field.name] for field in fields(LogBilinearSizes)})
        parts = {name: torch.tensor(array) for name, array in tensors.items() if not name.startswith("structures/")}
        network = cls.network_type(sizes, parts["bias"])
        network.load_state_dict(parts)
        structures = None
        if network.structured:
            structures = Tokens(tensors["structures/ids"].astype(np.int32), tensors["structures/offsets"])
        return cls(tuple(settings["encoders"]), network, structures)


class LogBilinearModel(LanguageModel):
    """`lbl`: no notice is taken of the image but in ranking."""

    network_type = LogBilinear


class MultiplicativeModel(LanguageModel):
    """`mnlm`: words are weighed by the place in the joint space."""

    network_type = Multiplicative


class StructureContentModel(LanguageModel):
    """`sc-nlm`: and by the parts of speech of the words to come."""

    network_type = StructureContent
