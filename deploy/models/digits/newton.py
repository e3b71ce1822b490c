# SPDX-License-Identifier: Apache-2.0
"""Counts the Newton iterations that a model needs when all its states are solved for at once.

Plain NumPy float32, multiple shooting with interval C, forward substitution in place of a parallel
scan. There is no stopping rule: K is the first iteration after which every unknown is within a
relative 1e-5 of the sequential states.
"""

import numpy as np

import forward

TOLERANCE = 1e-5
MAX_ITERATIONS = 32


def interval_ends(num_layers, interval):
    """Step numbers of the unknowns y_1..y_P."""
    return np.minimum(np.arange(interval, num_layers + interval, interval), num_layers)


class ShootingSystem:
    """The intervals of one model; states are [P, n, D], Jacobians [P, n, D, D]."""

    def __init__(self, model: forward.Model, interval: int):
        self.model = model
        self.ends = interval_ends(model.num_layers, interval)
        self.begins = np.concatenate([[0], self.ends[:-1]])
        self.interval = interval

    def _steps(self):
        """Yields, per position in an interval, the intervals that have a step there, and which."""
        for offset in range(self.interval):
            active = np.flatnonzero(self.begins + offset < self.ends)
            yield active, self.begins[active] + offset

    def _pre_activations(self, states, layers):
        tensors = self.model.tensors
        product = np.matmul(states, tensors["layers.weight"][layers].transpose(0, 2, 1))
        return product + tensors["layers.bias"][layers][:, None, :]

    def propagate(self, starts):
        """F_p at starts [P, n, D], for all p."""
        value = forward.ACTIVATIONS[self.model.config["activation"]][0]
        states = starts.copy()
        for active, layers in self._steps():
            new = value(self._pre_activations(states[active], layers))
            states[active] = states[active] + self.model.scale * new if self.model.residual else new
        return states

    def linearise(self, starts):
        """F_p and its Jacobian A_p at starts."""
        value, derivative = forward.ACTIVATIONS[self.model.config["activation"]]
        states = starts.copy()
        count, samples, dim = starts.shape
        identity = np.eye(dim, dtype=np.float32)
        jacobians = np.broadcast_to(identity, (count, samples, dim, dim)).copy()
        for active, layers in self._steps():
            pre = self._pre_activations(states[active], layers)
            weight = self.model.tensors["layers.weight"][layers][:, None]
            tangents = derivative(pre)[..., None] * np.matmul(weight, jacobians[active])
            new = value(pre)
            if self.model.residual:
                new = states[active] + self.model.scale * new
                tangents = jacobians[active] + self.model.scale * tangents
            states[active], jacobians[active] = new, tangents
        return states, jacobians


def _with_start(first, unknowns):
    return np.concatenate([first[None], unknowns[:-1]])


def newton_step(system, first, unknowns):
    """y_p <- F_p(y_(p-1)) + A_p d_(p-1), where d_p = A_p d_(p-1) + F_p(y_(p-1)) - y_p."""
    values, jacobians = system.linearise(_with_start(first, unknowns))
    updated, update = np.empty_like(unknowns), np.zeros_like(first)
    for p in range(len(unknowns)):
        carried = np.matmul(jacobians[p], update[..., None])[..., 0]
        updated[p] = values[p] + carried
        update = carried + (values[p] - unknowns[p])
    return updated


def picard_sweep(system, first, unknowns):
    """y_p <- y_0 + sum over q <= p of F_q(y_(q-1)) - y_(q-1): no Jacobian, one prefix sum."""
    starts = _with_start(first, unknowns)
    return first + np.cumsum(system.propagate(starts) - starts, axis=0, dtype=np.float32)


def relative_errors(unknowns, truth):
    """Per sample, the largest over p of |y_p - truth_p| / |truth_p| in the maximum norm; [n]."""
    error = np.abs(unknowns - truth).max(axis=2) / np.abs(truth).max(axis=2)
    return np.where(np.isfinite(error), error, np.inf).max(axis=0)


def count_iterations(system, guess, trajectory):
    """K per sample [n] from guess [P, n, D]; MAX_ITERATIONS + 1 where that was not enough."""
    first, truth = trajectory[0], trajectory[system.ends]
    counts = np.full(first.shape[0], MAX_ITERATIONS + 1)
    unknowns = guess
    with np.errstate(over="ignore", invalid="ignore"):
        for iteration in range(MAX_ITERATIONS + 1):
            reached = relative_errors(unknowns, truth) < TOLERANCE
            counts = np.where(reached, np.minimum(counts, iteration), counts)
            if (counts <= iteration).all() or iteration == MAX_ITERATIONS:
                return counts
            unknowns = newton_step(system, first, unknowns)
    return counts


def constant_guess(system, first):
    """z_0 everywhere."""
    return np.broadcast_to(first, (len(system.ends),) + first.shape).copy()


def fit_affine_guess(system, trajectory):
    """Least squares of y_p on (z_0, 1) over trajectories [L + 1, N, D]; returns [D + 1, P, D]."""
    first = trajectory[0].astype(np.float64)
    design = np.concatenate([first, np.ones((len(first), 1))], axis=1)
    targets = trajectory[system.ends].transpose(1, 0, 2).reshape(len(first), -1)
    solution = np.linalg.lstsq(design, targets.astype(np.float64), rcond=None)[0]
    return solution.reshape(design.shape[1], len(system.ends), -1).astype(np.float32)


def affine_guess(fit, first):
    """The fitted map applied to z_0 [n, D]; [P, n, D]."""
    return np.tensordot(fit[:-1], first, axes=(0, 1)).transpose(0, 2, 1) + fit[-1][:, None, :]
