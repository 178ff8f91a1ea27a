"""The linear probe: multinomial logistic regression on frozen features, solved to convergence."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from us3l.evaluation.features import check_features, check_labelled
from us3l.evaluation.scoring import fit_temperature, fit_threshold, percent_correct
from us3l.system.errors import UserError

GRADIENT_TOLERANCE = 1e-5
MAX_ITERATIONS = 1000
DEFAULT_L2 = 10.0
L2 = (1000.0, 100.0, 10.0, 1.0)
CHOOSING_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Probe:
    """A linear classifier of raw features, with what its solution took where that is known."""

    weight: Tensor  # C x D
    bias: Tensor  # C
    iterations: int | None = None
    gradient: float | None = None  # largest entry at the solution
    temperature: float | None = None
    """What to divide the scores by, so that their softmax is a probability; None where it is not known."""
    threshold: float | None = None
    """The probability from which on it is sure enough to answer; None where it is not known."""

    def scores(self, features: Tensor) -> Tensor:
        """Logits of the classes.

        Args:
            features: N x D.

        Returns:
            N x C.
        """
        check_features(features, like=self.weight)
        return F.linear(features.to(self.weight), self.weight, self.bias)


def linear_probe(
    train_features: Tensor, train_labels: Tensor, num_classes: int | None = None, *, l2: float = DEFAULT_L2
) -> Probe:
    """Minimise cross-entropy, summed over images, + l2/2 |W|^2 on features standardised by the training set.

    The problem is convex and the search starts from zero: no seed, no schedule, no learning rate to tune.
    It is scikit-learn's `LogisticRegression(C=1 / l2)` after `StandardScaler`. As a penalty of the sum, the same l2
    serves for few and for many images.

    Args:
        train_features: N x D.
        train_labels: Class indices, N.
        num_classes: C (default: one more than the largest label).
        l2: Strength of the penalty.

    Returns:
        A classifier of raw features: it undoes the standardisation.

    >>> features, labels = torch.tensor([[0.0], [1.0], [4.0], [5.0]]), torch.tensor([0, 0, 1, 1])
    >>> linear_probe(features, labels).scores(torch.tensor([[2.0], [3.0]])).argmax(1)
    tensor([0, 1])
    """
    num_classes = check_labelled(train_features, train_labels, num_classes)
    if not l2 > 0:
        raise UserError(f"the linear probe needs l2 > 0, got {l2}: without it separable classes have no solution")
    problem = _Problem.of(train_features, train_labels, num_classes)
    weight, bias, iterations, gradient = problem.minimise(l2)
    if gradient > GRADIENT_TOLERANCE:
        warning = f"linear probe: gradient {gradient:.1e} after {iterations} iterations; try a larger l2"
        warnings.warn(warning, stacklevel=2)
    return problem.probe(weight, bias, iterations, gradient)


def choose_l2(train_features: Tensor, train_labels: Tensor, num_classes: int | None = None, seed: int = 0) -> float:
    """The value of `L2` whose probe is best on a fifth of each class held out from the training images.

    Of equally good ones the largest is taken. Where no class has an image to spare, it is the default, 10.
    """
    return choose_penalty(train_features, train_labels, num_classes, seed)[0]


def choose_penalty(
    train_features: Tensor, train_labels: Tensor, num_classes: int | None = None, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """Return what `choose_l2` gives, with the temperature and the threshold of its best probe.

    Both are fitted on the images held out (see `us3l.evaluation.scoring`), and None if there are none.
    """
    num_classes = check_labelled(train_features, train_labels, num_classes)
    held_out = _fifth_of_each_class(train_labels, seed)
    if not held_out.any():
        return DEFAULT_L2, None, None
    problem = _Problem.of(train_features[~held_out], train_labels[~held_out], num_classes)
    best, best_correct, temperature, threshold, start = DEFAULT_L2, -1.0, 1.0, 1.0, None
    for l2 in L2:  # from strong to weak: each solution is a good start for the next
        weight, bias, *_ = found = problem.minimise(l2, start, CHOOSING_TOLERANCE)
        start = (weight, bias)
        scores = problem.probe(*found).scores(train_features[held_out])
        correct = percent_correct(scores, train_labels[held_out])
        if correct > best_correct:
            best, best_correct = l2, correct
            temperature = fit_temperature(scores, train_labels[held_out])
            sure, guess = (scores / temperature).softmax(1).max(1)
            threshold = fit_threshold(sure, guess == train_labels[held_out])
    return best, temperature, threshold


def linear_accuracy(
    train_features: Tensor, train_labels: Tensor, test_features: Tensor, test_labels: Tensor, *, l2: float = DEFAULT_L2
) -> float:
    """Top-1 accuracy of `linear_probe` in percent."""
    return percent_correct(linear_probe(train_features, train_labels, l2=l2).scores(test_features), test_labels)


@dataclass(frozen=True)
class _Problem:
    """Standardised features, turned to their principal axes, with the way back."""

    features: Tensor  # N x D
    labels: Tensor
    num_classes: int
    mean: Tensor
    scale: Tensor
    basis: Tensor  # D x D, orthogonal
    variance: Tensor  # along each of its axes

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, num_classes: int) -> "_Problem":
        # Double precision: single stalls at gradients of 5e-5, where predictions still move by tenths of a percent.
        features = features.double()
        mean, std = features.mean(0), features.std(0, correction=0)
        # What varies less than single precision resolves is constant: it gets weight 0.
        scale = torch.where(std > 1e-6 * mean.abs(), 1 / std, 0)
        features = (features - mean) * scale
        variance, basis = torch.linalg.eigh(features.T @ features / len(features))
        return cls(features @ basis, labels, num_classes, mean, scale, basis, variance.clamp(min=0))

    def probe(self, weight: Tensor, bias: Tensor, iterations: int, gradient: float) -> Probe:
        weight = weight @ self.basis.T * self.scale
        return Probe(weight, bias - weight @ self.mean, iterations, gradient)

    def minimise(
        self, l2: float, start: tuple[Tensor, Tensor] | None = None, tolerance: float = GRADIENT_TOLERANCE
    ) -> tuple[Tensor, Tensor, int, float]:
        """Weight, bias, iterations and the largest entry of the gradient."""
        # Damped whitening changes the path of the search, not the solution: 4 to 6 times fewer iterations on CIFAR-10.
        strength = l2 / len(self.features)
        stretch = (self.variance + strength + 0.1).rsqrt()
        features, labels, penalty = self.features * stretch, self.labels, strength * stretch.square()
        weight, bias = features.new_zeros(self.num_classes, features.shape[1]), features.new_zeros(self.num_classes)
        if start is not None:
            weight, bias = start[0] / stretch, start[1].clone()
        optimizer = torch.optim.LBFGS(
            [weight, bias],
            max_iter=MAX_ITERATIONS,
            max_eval=2 * MAX_ITERATIONS,
            tolerance_grad=tolerance,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )

        def objective() -> Tensor:
            log_probability = F.linear(features, weight, bias).log_softmax(1)
            loss = F.nll_loss(log_probability, labels) + (penalty * weight.square()).sum() / 2
            # The gradient by hand is short, and holds inside inference_mode too.
            residual = log_probability.exp_()
            residual.scatter_add_(1, labels[:, None], residual.new_full((len(labels), 1), -1)).div_(len(labels))
            weight.grad, bias.grad = residual.T @ features + penalty * weight, residual.sum(0)
            return loss

        optimizer.step(objective)
        objective()
        assert weight.grad is not None
        assert bias.grad is not None
        gradient = max(weight.grad.abs().max().item(), bias.grad.abs().max().item())
        return weight * stretch, bias, optimizer.state[weight].get("n_iter", 0), gradient


def _fifth_of_each_class(labels: Tensor, seed: int) -> Tensor:
    """A bool an image: a random fifth of each class, none of classes of one image."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    held_out = torch.zeros_like(labels, dtype=torch.bool)
    for label in labels.unique():
        of_class = order[labels[order] == label]
        held_out[of_class[: max(round(len(of_class) / 5), int(len(of_class) > 1))]] = True
    return held_out
