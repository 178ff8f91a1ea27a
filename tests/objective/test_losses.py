"""Losses against loops written from their formulas, and their gradients against the paper's derivations."""

import math

import pytest
import torch
from torch.nn import functional as F

from us3l.distributed.peers import Peers
from us3l.objective.losses import info_nce, moco, negative_cosine, nt_xent, relations, seed, soft_cross_entropy, unit


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def naive_nt_xent(z, t, temperature):
    """Equation 2 with loops: every sample of either side is an anchor once."""
    views = z.tolist(), t.tolist()
    count, total = len(z), 0.0
    for side in (0, 1):
        for i in range(count):
            anchor = views[side][i]
            positive = math.exp(dot(anchor, views[1 - side][i]) / temperature)
            negatives = sum(
                math.exp(dot(anchor, views[v][j]) / temperature) for v in (0, 1) for j in range(count) if j != i
            )
            total -= math.log(positive / (positive + negatives))
    return total / (2 * count)


def random_units(*counts, dim=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [unit(torch.randn(count, dim, generator=generator, dtype=torch.float64)) for count in counts]


def test_nt_xent_equals_equation_2():
    for number in range(3):
        for temperature in (0.1, 0.5, 1.0):
            z, t = random_units(5, 5, seed=number)
            assert abs(nt_xent(z, t, temperature).item() - naive_nt_xent(z, t, temperature)) < 1e-9


def test_negative_cosine_equals_equation_6():
    z, t = random_units(7, 7)
    assert abs(negative_cosine(z, t).item() + sum(map(dot, z.tolist(), t.tolist())) / 7) < 1e-9


def test_info_nce_equals_equation_7():
    z, t = random_units(6, 6)
    total = 0.0
    for i, student in enumerate(z.tolist()):
        total -= dot(student, t[i].tolist()) / 0.5
        total += math.log(sum(math.exp(dot(student, target) / 0.5) for target in t.tolist()))
    assert abs(info_nce(z, t, 0.5).item() - total / 6) < 1e-9


def test_moco_contrasts_with_the_queue_only():
    z, t, queue = random_units(6, 6, 9)
    total = 0.0
    for query, key in zip(z.tolist(), t.tolist(), strict=True):
        positive = math.exp(dot(query, key) / 0.2)
        total -= math.log(positive / (positive + sum(math.exp(dot(query, old) / 0.2) for old in queue.tolist())))
    assert abs(moco(z, t, queue, 0.2).item() - total / 6) < 1e-9


def test_seed_compares_two_distributions_over_the_target_and_the_queue():
    z, t, queue = random_units(6, 6, 9)
    total = 0.0
    for student, teacher in zip(z.tolist(), t.tolist(), strict=True):
        keys = [teacher, *queue.tolist()]
        expected = [math.exp(dot(teacher, key) / 0.3) for key in keys]
        found = [math.exp(dot(student, key) / 0.5) for key in keys]
        total -= sum(p / sum(expected) * math.log(q / sum(found)) for p, q in zip(expected, found, strict=True))
    assert abs(seed(z, t, queue, 0.5, 0.3).item() - total / 6) < 1e-9


def test_seed_of_a_cold_teacher_is_moco():
    z, t, queue = random_units(6, 6, 9)
    assert abs(seed(z, t, queue, 0.5, 1e-4) - moco(z, t, queue, 0.5)) < 1e-9


def test_relations_compare_similarities_to_the_other_samples():
    z, t = random_units(6, 6)
    total = 0.0
    for i in range(6):
        p, q = ([math.exp(dot(row[i].tolist(), t[j].tolist()) / 0.2) for j in range(6) if j != i] for row in (t, z))
        total -= sum(a / sum(p) * math.log(b / sum(q)) for a, b in zip(p, q, strict=True)) / 6
    assert abs(relations(z, t, 0.2).item() - total) < 1e-9

    class Half(Peers):
        def gather(self, rows):
            return t if len(rows) == 3 else rows

    def half(rank):
        mine = slice(3 * rank, 3 * rank + 3)
        return relations(z[mine], t[mine], 0.2, Half(rank, 2))

    assert abs((half(0) + half(1)).item() / 2 - total) < 1e-9


def test_soft_cross_entropy_equals_its_formula():
    logits, target = torch.randn(2, 5, 3, dtype=torch.float64)
    total = 0.0
    for found, wanted in zip(logits.tolist(), target.tolist(), strict=True):
        p, q = ([math.exp(x) / sum(map(math.exp, row)) for x in row] for row in (wanted, found))
        total -= sum(a * math.log(b) for a, b in zip(p, q, strict=True))
    assert abs(soft_cross_entropy(logits, target).item() - total / 5) < 1e-9


def gradients(loss, z):
    """Of each row of z, had it a loss of its own (the losses are means over rows)."""
    z = z.clone().requires_grad_()
    return len(z) * torch.autograd.grad(loss(z), z)[0]


def test_gradients_of_lemma_1():
    z, t = random_units(6, 6)
    torch.testing.assert_close(gradients(lambda z: negative_cosine(z, t), z), -t)
    shares = (z @ t.T).softmax(dim=1)
    torch.testing.assert_close(gradients(lambda z: info_nce(z, t, 1.0), z), -t + shares @ t)


def test_gradient_of_lemma_2():
    z, classes = random_units(6, 3)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    shares = (z @ classes.T).softmax(dim=1)
    found = gradients(lambda z: F.cross_entropy(z @ classes.T, labels), z)
    torch.testing.assert_close(found, -classes[labels] + shares @ classes)


def rotation(dim):
    """A random orthogonal matrix."""
    return torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))[0]


def test_equations_9_and_10_all_outputs_rotated_by_one_matrix():
    z, t = random_units(16, 16, dim=8)
    w, identity = rotation(8), torch.eye(8, dtype=torch.float64)
    mse = gradients(lambda z: negative_cosine(z, t @ w.T), z @ w.T) - gradients(lambda z: negative_cosine(z, t), z)
    torch.testing.assert_close(mse, t @ (identity - w).T)
    nce = gradients(lambda z: info_nce(z, t @ w.T, 1.0), z @ w.T) - gradients(lambda z: info_nce(z, t, 1.0), z)
    shares = (z @ t.T).softmax(dim=1)
    torch.testing.assert_close(nce, (t - shares @ t) @ (identity - w).T)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_when_student_and_teacher_agree_info_nce_changes_less(temperature):
    """The closer P_i is to 1, the smaller its difference; at P_i = 1 it vanishes. Temperatures scale gradients."""
    (t,) = random_units(16, dim=8)
    w = rotation(8)

    def difference(loss):
        return (gradients(loss(t @ w.T), t @ w.T) - gradients(loss(t), t)).norm(dim=1)

    mse = difference(lambda t: lambda z: negative_cosine(z, t))
    nce = temperature * difference(lambda t: lambda z: info_nce(z, t, temperature))
    assert (nce < mse).all()
    assert nce.mean() < (0.95 if temperature == 1.0 else 0.6) * mse.mean()


def test_gradients_by_finite_differences():
    z, t, queue = random_units(5, 5, 7)
    z.requires_grad_()
    losses = [
        lambda z: nt_xent(unit(z), t, 0.5),
        lambda z: info_nce(unit(z), t, 0.5),
        lambda z: negative_cosine(unit(z), t),
        lambda z: moco(unit(z), t, queue, 0.5),
        lambda z: seed(unit(z), t, queue, 0.5, 0.1),
        lambda z: relations(unit(z), t, 0.5),
        lambda z: soft_cross_entropy(z, t),
    ]
    for loss in losses:
        assert torch.autograd.gradcheck(loss, z)


def test_units_are_not_computed_in_half_precision():
    z = torch.randn(3, 4)
    assert unit(z.bfloat16()).dtype == torch.float32
    torch.testing.assert_close(unit(7 * z), unit(z))
    torch.testing.assert_close(unit(z).norm(dim=1), torch.ones(3))


def test_losses_are_computed_in_32_bits_under_mixed_precision():
    """SEED's teacher knows its own output from a near-duplicate in the queue, which 16 bits cannot tell apart."""
    t = F.normalize(torch.randn(1, 64, generator=torch.Generator().manual_seed(0)))
    across = F.normalize(torch.ones(1, 64) - (torch.ones(1, 64) * t).sum() * t)
    cosine = 1 - 1e-4 * math.log(0.995 / 0.005)
    queue = cosine * t + math.sqrt(1 - cosine**2) * across
    z, others = F.normalize(torch.randn(2, 64)), F.normalize(torch.randn(9, 64))

    def losses():
        return torch.stack(
            [
                seed(t, t, queue, temperature=1e-4, teacher_temperature=1e-4),
                nt_xent(z, z.flip(0), 0.01),
                info_nce(z, z.flip(0), 0.01),
                moco(z, z.flip(0), others, 0.01),
                relations(others, others.flip(0), 0.01),
            ]
        )

    exact = losses()
    entropy = -(0.995 * math.log(0.995) + 0.005 * math.log(0.005))
    assert exact[0].item() == pytest.approx(entropy, rel=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(losses(), exact)
