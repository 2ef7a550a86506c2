"""Bidirectional networks, relations of dependency trees and the multiple-instance objective are compared with torch's
own modules and with naive loops."""

import numpy as np
import pytest
import torch
from synthetic_tasks import draw_dependencies

from pipeline.compute.multivectors import SUMS, MultiVectors, ScoreRule
from pipeline.metrics.multivector_scores import multivector_scores, score_products
from pipeline.models.neural.fragments import RectifiedBRNN, RelationNetwork, learn_relations
from pipeline.models.neural.losses import MultipleInstance, Objective, ScoredFragments
from pipeline.models.neural.recurrence import pack
from pipeline.models.neural.word_towers import BiGRU
from pipeline.text.trees import Trees
from pipeline.text.trees import pack as pack_trees
from pipeline.text.vocabulary import Tokens

LENGTHS = [3, 0, 7, 1, 7, 2]
TREES = [4, 1, 0, 9, 2]
WORDS = 12
LABELS = 5


def make_tokens() -> Tokens:
    offsets = np.cumsum([0, *LENGTHS])
    return Tokens(np.random.default_rng(0).integers(20, size=offsets[-1]).astype(np.int32), offsets)


def test_word_vectors_follow_the_equations() -> None:
    """The expected vectors are computed word by word from equations 2 to 6 of Karpathy and Fei-Fei 2015."""
    torch.manual_seed(0)
    network = RectifiedBRNN(torch.randn(21, 5), dimensions=3, dropout=0, hidden=4)
    tokens = make_tokens()
    for name in ("b_e", "b_f", "b_b", "b_d"):
        getattr(network, name).data.normal_()
    found = network(network.arrange(tokens))
    for i, ids in enumerate(tokens):
        e = [(network.e @ network.words[w] + network.b_e).relu() for w in (list(ids) or [20])]
        forwards = []
        backwards = []
        h = torch.zeros(4)
        for each in e:
            h = (each + network.f @ h + network.b_f).relu()
            forwards.append(h)
        h = torch.zeros(4)
        for each in reversed(e):
            h = (each + network.b @ h + network.b_b).relu()
            backwards.append(h)
        both = zip(forwards, reversed(backwards), strict=True)
        expected = torch.stack([(network.d @ (hf + hb) + network.b_d).relu() for hf, hb in both])
        torch.testing.assert_close(found.between(i, i + 1).vectors, expected)


def test_both_directions_of_a_gru_equal_those_of_torch() -> None:
    torch.manual_seed(0)
    reference = torch.nn.GRU(5, 4, bidirectional=True)
    ours = BiGRU(5, 4)
    for end, suffix in (("first", ""), ("last", "_reverse")):
        for name, theirs in (("w", "weight_ih"), ("u", "weight_hh"), ("bias", "bias_ih"), ("hidden_bias", "bias_hh")):
            getattr(ours, f"{name}_{end}").data.copy_(getattr(reference, f"{theirs}_l0{suffix}"))
    packed = pack(make_tokens(), unknown=20)
    words = torch.randn(21, 5)
    sequence = torch.nn.utils.rnn.PackedSequence(words[packed.ids], torch.tensor(packed.sizes))
    torch.testing.assert_close(ours(words[packed.ids], packed), reference(sequence)[0].data)


def make_batch() -> tuple[MultiVectors, MultiVectors, torch.Tensor]:
    """Draw three pairs: 4, 1 and 4 regions, and 2, 3 and 1 words. Also return the ids of the images. The first and the
    last pair belong to the same image."""
    rng = np.random.default_rng(1)
    images = MultiVectors(torch.from_numpy(rng.standard_normal((9, 4))), np.array([0, 4, 5, 9]))
    sentences = MultiVectors(torch.from_numpy(rng.standard_normal((6, 4))), np.array([0, 2, 5, 6]))
    return images, sentences, torch.tensor([8, 5, 8])


def test_the_multiple_instance_objective_equals_the_sum_of_the_paper() -> None:
    images, sentences, owners = make_batch()
    ranking = Objective("ranking", "all", 0, margin=1.0, temperature=1.0, reduction="mean")
    scores = multivector_scores(images, sentences, ScoreRule("positive", 0))
    regions = np.repeat(owners.numpy(), images.lengths)
    words = np.repeat(owners.numpy(), sentences.lengths)
    costs: dict[bool, list[float]] = {True: [], False: []}
    for t, s in enumerate(sentences.vectors.numpy()):
        products = images.vectors.numpy() @ s
        bag = np.flatnonzero(regions == words[t])
        best = bag[products[bag].argmax()]
        for i, product in enumerate(products):
            y = i in bag and (product > 0 or i == best)
            costs[y].append(max(0.0, 1 - product if y else 1 + product))
    expected = sum(np.mean(each) for each in costs.values())
    objective = MultipleInstance(ranking, weight=0.5)
    products = images.vectors @ sentences.vectors.T
    for rule in SUMS:
        scored = multivector_scores(images, sentences, ScoreRule(rule, 0))
        torch.testing.assert_close(score_products(products, images, sentences, rule), scored)
    batch = ScoredFragments(scores, products, images.owners, sentences.owners)
    assert objective.align(batch, owners).item() == pytest.approx(expected)
    assert objective(batch, owners).item() == pytest.approx(ranking(scores, owners).item() + 0.5 * expected)
    assert MultipleInstance(ranking, 0)(batch, owners) == ranking(scores, owners)


def make_network(matrix_of: list[int]) -> RelationNetwork:
    torch.manual_seed(0)
    network = RelationNetwork(torch.randn(WORDS + 1, 3), dimensions=4, dropout=0, matrix_of=matrix_of)
    network.bias.data.normal_()
    return network


def test_vectors_of_relations_follow_the_equation_of_the_paper() -> None:
    """The equation of Karpathy et al. 2014 is s = f(W_R c + b_R), where c concatenates W_e w1 and W_e w2. The relations
    of a sentence are in word order, and relations that are unknown or rare are skipped."""
    trees = draw_dependencies(np.random.default_rng(0), TREES, WORDS, LABELS)
    matrix_of = [1, -1, 2, 3, -1]
    network = make_network(matrix_of)
    found = network(network.arrange(trees))
    assert len(found) == len(TREES)
    for i, (start, stop) in enumerate(zip(trees.offsets, trees.offsets[1:], strict=False)):
        expected = []
        for node in range(start, stop):
            parent = trees.parents[node]
            label = trees.labels[node]
            matrix = 0 if parent < 0 else matrix_of[label] if label < LABELS else -1
            if matrix < 0:
                continue
            head = network.words[trees.words[start + parent]] if parent >= 0 else torch.zeros(3)
            pair = torch.cat([head, network.words[trees.words[node]]])
            expected.append((network.weight[matrix] @ pair + network.bias[matrix]).relu())
        if start == stop:  # A sentence without words has the unknown word.
            pair = torch.cat([torch.zeros(3), network.words[WORDS]])
            expected = [(network.weight[0] @ pair + network.bias[0]).relu()]
        torch.testing.assert_close(found.between(i, i + 1).vectors, torch.stack(expected))


def test_relations_of_too_few_words_have_no_matrix() -> None:
    """Five of the ten words with a head have label 0, four have label 2, and one has label 3. Roots are not counted.
    With a least share of 0.2, only the labels 0 and 2 get a matrix."""
    labels = [1] + [0] * 5 + [2] * 4 + [3]
    trees = pack_trees([[(node - 1, 0, label) for node, label in enumerate(labels)]])
    assert learn_relations(trees, 0.2) == [1, -1, 2, -1]
    assert learn_relations(trees, 0.0) == [1, -1, 2, 3]
    assert learn_relations(Trees(*(np.zeros(0, np.int32),) * 3, np.zeros(1, np.int64)), 0.01) == []
