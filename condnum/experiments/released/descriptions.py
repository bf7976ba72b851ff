"""What each switch does in the release, what the corrected protocol does, and why it matters."""

from __future__ import annotations

from typing import NamedTuple


class SwitchText(NamedTuple):
    """One switch in words."""

    title: str
    released: str  # what the release does
    corrected: str  # what the corrected protocol does
    why: str  # why it can matter


#: By switch. House prices, MNIST and the embedded tables each use those that they have.
TEXTS: dict[str, SwitchText] = {
    "encoders": SwitchText(
        "label encoders",
        "one for each domain",
        "one for the union of both domains",
        "with two encoders one code can mean two categories, so the two K are not of the same features",
    ),
    "normalise": SwitchText(
        "standardisation",
        "before the rows are cut: mean and deviation of rows that are then left out",
        "mean and deviation of the rows that are used",
        "K is uncentred: a mean that is not removed adds a large direction of its own",
    ),
    "rows": SwitchText(
        "rows",
        "the first 200 of each task (the next 100 are its validation set)",
        "all rows of both tasks",
        "κ of some rows is that of a sample, not of the task",
    ),
    "labels": SwitchText(
        "labels of the loss",
        "the images of digit p alone, all with label 0",
        "digit p against as many images of the other digits",
        "a loss with one class has nothing to tell apart",
    ),
    "bias": SwitchText(
        "bias of the extractor",
        "the extractor has one, and its RIR counts it",
        "none, f(x) = xᵀθ as in the paper",
        "with a bias b the Gram matrix of the features is not θᵀKθ, and theorems about θᵀKθ do not apply",
    ),
    "preconditioner_side": SwitchText(
        "side of K⁻¹",
        "the output side of the weight's gradient, by a regularised solve",
        "the input side, where it cancels: K⁻¹∇<sub>θ</sub>R = 2θ∇<sub>H</sub> R",
        "Algorithm 1 has it on the input side; the other product exists only because in = out",
    ),
    "regularizer_dimension": SwitchText(
        "p and k of the regularizers",
        "the side of the image",
        "dimension and rank of H",
        "they weigh σ₁² and σ<sub>k</sub>² against ‖H‖²<sub>F</sub>",
    ),
    "kappa_floor": SwitchText(
        "smallest eigenvalue",
        "an absolute floor of 1e-6, k = D",
        "the smallest non-zero one, k = rank(H)",
        "at the floor R<sub>ill</sub> has no smallest eigenvector to push down: it only scales H up",
    ),
    "covariance": SwitchText(
        "covariance",
        "that of a mini-batch of 64 rows: rank ≤ 64",
        "that of all rows",
        "the spectrum of 64 rows is not the task's: it has other null directions in every step",
    ),
    "weights": SwitchText(
        "weights λ",
        "fixed numbers, loss weight 1",
        "balanced by the gradients' norms at step 0, with the registered ratio and loss weight",
        "fixed weights belong to one scale of K, that is to one number of rows",
    ),
    "step_size": SwitchText(
        "step size",
        "constant",
        "the registered one, with cosine decay",
        "Adam with a constant step does not settle",
    ),
    "epochs": SwitchText(
        "number of updates",
        "a fixed number of epochs",
        "the registered number of full-batch steps",
        "RIR goes on growing: a number says as much about the budget as about the method",
    ),
}

#: The authors' release, whose source the details below were read from.
RELEASE = (
    "https://github.com/amberyzheng/model-immunization-cond-num/tree/dc536a850c726e8b0647593f35871ee62dcd5187"
)

#: What else the rebuilt loop has in common with the release, and where it differs: the switch that a detail
#: belongs to ("" for all data), what, and how.
DETAILS: tuple[tuple[str, str, str], ...] = (
    (
        "normalise",
        "standardisation",
        "inputs and targets of each domain by its own mean and deviation over all its rows, as in the "
        "release; its deviation divides by N − 1 and it stores 32-bit numbers, here N and 64 bits",
    ),
    (
        "",
        "ε of the regularised solve (K + εI)⁻¹",
        "as in the release, in units of the mini-batch's XᵀX: 1 for R<sub>well</sub>; for R<sub>ill</sub> 1 "
        "on tables, 1e-7 on digits",
    ),
    (
        "",
        "what is preconditioned",
        "as in the release: the weight's gradient of each regularizer, with its own mini-batch; not its "
        "bias, not the loss",
    ),
    (
        "",
        "mini-batches",
        "as in the release: 64 rows, row i of one task with row i of the other, shuffled together each "
        "epoch, the last, smaller batch dropped. With all rows the tasks are of different lengths, which "
        "the release has for images only: there the shorter one repeats its batches",
    ),
    (
        "",
        "where RIR is measured",
        "as in the release: on the training rows of both tasks, features with their bias, raw inputs without",
    ),
    (
        "",
        "k of R<sub>ill</sub> at the floor",
        "D: the release takes the smallest eigenvalue of S + 1e-6·I above 1e-6, which round-off decides; "
        "here it is the floor itself, and its eigenvector's part of the gradient, as small, is left out",
    ),
    ("", "random numbers", "the release's distributions, but not its stream: seed 1 here is not its seed 1"),
)
