import math

import torch

from us3l.objective.losses import info_nce, negative_cosine, nt_xent


def unit(rows):
    return [[x / math.sqrt(sum(v * v for v in row)) for x in row] for row in rows]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def naive_nt_xent(z, t, temperature):
    """Equation 2 with loops: every sample of either side is an anchor once."""
    views = unit(z.tolist()), unit(t.tolist())
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


def pair(count=5, dim=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, dim, generator=generator, dtype=torch.float64) for _ in range(2)]


def test_nt_xent_equals_the_papers_formula():
    for seed in range(3):
        for temperature in (0.1, 0.5, 1.0):
            z, t = pair(seed=seed)
            assert abs(nt_xent(z, t, temperature).item() - naive_nt_xent(z, t, temperature)) < 1e-9


def test_negative_cosine_equals_its_formula():
    p, z = pair(7)
    expected = -sum(dot(a, b) for a, b in zip(unit(p.tolist()), unit(z.tolist()), strict=True)) / 7
    assert abs(negative_cosine(p, z).item() - expected) < 1e-9


def test_info_nce_equals_equation_7():
    z, t = pair(6)
    students, targets = unit(z.tolist()), unit(t.tolist())
    total = 0.0
    for i, student in enumerate(students):
        total -= dot(student, targets[i]) / 0.5
        total += math.log(sum(math.exp(dot(student, target) / 0.5) for target in targets))
    assert abs(info_nce(z, t, 0.5).item() - total / 6) < 1e-9


def test_gradients_of_lemma_1():
    """With unit outputs and no normalisation in the way: -t for MSE, -t + sum_j P_j t_j for InfoNCE."""
    z, t = (torch.nn.functional.normalize(x, dim=1) for x in pair(6))
    z.requires_grad_()
    tangent = torch.eye(4, dtype=z.dtype) - z[0].outer(z[0])  # of the unit sphere, on which outputs move
    (gradient,) = torch.autograd.grad(negative_cosine(z, t), z)
    torch.testing.assert_close(6 * gradient[0], -tangent @ t[0])
    (gradient,) = torch.autograd.grad(info_nce(z, t, 1.0), z)
    shares = (z[0] @ t.T).softmax(0)
    torch.testing.assert_close(6 * gradient[0], tangent @ (-t[0] + shares @ t))


def test_gradients_by_finite_differences():
    z, t = pair()
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda a: nt_xent(a, t, 0.5), z)
    assert torch.autograd.gradcheck(lambda a: info_nce(a, t, 0.5), z)
    assert torch.autograd.gradcheck(lambda a: negative_cosine(a, t), z)


def test_losses_ignore_scale_and_are_not_computed_in_half_precision():
    z, t = pair()
    torch.testing.assert_close(nt_xent(z * 7, t / 3, 0.5), nt_xent(z, t, 0.5))
    assert nt_xent(z.bfloat16(), t.bfloat16(), 0.5).dtype == torch.float32
    assert negative_cosine(z.bfloat16(), t.bfloat16()).dtype == torch.float32
