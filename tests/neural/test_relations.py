"""Sentences as relations of dependency trees, against a naive loop."""

import numpy as np
import torch
from made_up_trees import draw_dependencies

from pipeline.models.neural.fragments import RelationNetwork, learn_relations
from pipeline.text.trees import Trees, pack

LENGTHS, WORDS, LABELS = [4, 1, 0, 9, 2], 12, 5


def make_network(matrix_of: list[int]) -> RelationNetwork:
    torch.manual_seed(0)
    network = RelationNetwork(torch.randn(WORDS + 1, 3), dimensions=4, dropout=0, matrix_of=matrix_of)
    network.bias.data.normal_()
    return network


def test_each_relation_is_the_papers_vector() -> None:
    """s = f(W_R [W_e w1; W_e w2] + b_R), sentence after sentence in word order; unknown and rare relations are left
    out."""
    trees = draw_dependencies(np.random.default_rng(0), LENGTHS, WORDS, LABELS)
    matrix_of = [1, -1, 2, 3, -1]
    network = make_network(matrix_of)
    found = network(network.arrange(trees))
    assert len(found) == len(LENGTHS)
    for i, (start, stop) in enumerate(zip(trees.offsets, trees.offsets[1:], strict=False)):
        expected = []
        for node in range(start, stop):
            parent, label = trees.parents[node], trees.labels[node]
            matrix = 0 if parent < 0 else matrix_of[label] if label < LABELS else -1
            if matrix < 0:
                continue
            head = network.words[trees.words[start + parent]] if parent >= 0 else torch.zeros(3)
            pair = torch.cat([head, network.words[trees.words[node]]])
            expected.append((network.weight[matrix] @ pair + network.bias[matrix]).relu())
        if start == stop:  # no words: the unknown one
            pair = torch.cat([torch.zeros(3), network.words[WORDS]])
            expected = [(network.weight[0] @ pair + network.bias[0]).relu()]
        torch.testing.assert_close(found.between(i, i + 1).vectors, torch.stack(expected))


def test_relations_of_too_few_words_have_no_matrix() -> None:
    """Of ten words with a head, five have label 0, four label 2 and one label 3; roots count for none."""
    labels = [1] + [0] * 5 + [2] * 4 + [3]
    trees = pack([[(node - 1, 0, label) for node, label in enumerate(labels)]])
    assert learn_relations(trees, 0.2) == [1, -1, 2, -1]
    assert learn_relations(trees, 0.0) == [1, -1, 2, 3]
    assert learn_relations(Trees(*(np.zeros(0, np.int32),) * 3, np.zeros(1, np.int64)), 0.01) == []
