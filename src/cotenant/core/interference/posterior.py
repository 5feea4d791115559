# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A Gaussian process whose rows are added and removed, each at the cost of one product of a matrix and a vector.

It keeps the inverse W of the Cholesky factor of the rows' covariance, so that W K W' = 1. (An explicit inverse of K,
updated row by row, loses all its digits within forty updates.) Values are needed only for predictions.
"""

import numpy as np

from cotenant.core.interference.catalogue import Catalogue
from cotenant.core.interference.kernel import Floats, Indices, Pairs, Shares, beside_all, covariance, variance

JITTER = 1e-4
"""variance of a row that no model and no repetition explains, which also keeps the matrix regular"""
BLOCK = 64
"""rows that are appended at once"""
FEW = 4
"""up to so many rows are multiplied with a matrix one by one, which is faster"""
STRIP = 32
"""rows that are corrected at once after a row before them was removed"""


class Posterior:
    """Rows (victim beside partner) with the noise of each, and what they predict about any other pair."""

    def __init__(self, catalogue: Catalogue, shares: Shares, room: int) -> None:
        self._catalogue, self._shares = catalogue, shares
        self._victims, self._partners = np.zeros(room, np.int64), np.zeros(room, np.int64)
        self._whitening = np.zeros((room, room))
        self.rows = 0

    @property
    def pairs(self) -> Pairs:
        return Pairs(self._victims[: self.rows], self._partners[: self.rows])

    @property
    def whitening(self) -> Floats:
        """W: makes values of the rows independent, each of variance one."""
        return self._whitening[: self.rows, : self.rows]

    def append(self, pairs: Pairs, noise: Floats) -> None:
        """Adds rows at the end, in blocks."""
        for start in range(0, len(noise), BLOCK):
            some = slice(start, start + BLOCK)
            self._append(Pairs(pairs.victims[some], pairs.partners[some]), noise[some])

    def _append(self, new: Pairs, noise: Floats) -> None:
        old = self.rows
        total = old + len(noise)
        like = self._catalogue.likeness
        whitened, pulled = self._twice(covariance(like, new, self.pairs, self._shares))
        own = covariance(like, new, new, self._shares) + np.diag(noise + JITTER) - whitened @ whitened.T
        factor = np.linalg.inv(np.linalg.cholesky(own))
        self._whitening[old:total, :old] = -factor @ pulled
        self._whitening[old:total, old:total] = factor
        self._victims[old:total], self._partners[old:total] = new
        self.rows = total

    def _twice(self, shared: Floats) -> tuple[Floats, Floats]:
        """Rows times W', and that times W."""
        if len(shared) > FEW:
            whitened = shared @ self.whitening.T
            return whitened, whitened @ self.whitening
        # Vector by vector, and of the triangle a strip at a time, so that it is read from memory only once.
        whitened, pulled = np.empty_like(shared), np.zeros_like(shared)
        for start in range(0, self.rows, 2 * BLOCK):
            end = min(start + 2 * BLOCK, self.rows)
            strip = self.whitening[start:end, :end]
            for row in range(len(shared)):
                whitened[row, start:end] = strip @ shared[row, :end]
                pulled[row, :end] += whitened[row, start:end] @ strip
        return whitened, pulled

    def drop(self, row: int) -> None:
        """Removes one row; those after it move up."""
        last = self.rows - 1
        gone = self.whitening[row].copy()
        later = self.whitening[row + 1 :]
        # What the later rows knew through this one is theirs again: L L' of them becomes L L' + l l', and with
        # w = L^-1 l their part of W becomes M^-1 (W + w gone), M the Cholesky factor of 1 + w w'. Row j of that
        # needs only the sum of the rows before it, each times its w, so it is carried from block to block.
        weight = -later[:, row] / gone[row]
        gone[row] = 0.0
        grown = 1.0 + np.cumsum(weight**2)
        before = np.concatenate([[1.0], grown[:-1]])
        shrink, pull = np.sqrt(before / grown), weight / before
        carried = np.zeros(self.rows)
        for start in range(0, len(later), STRIP):
            part = slice(start, start + STRIP)
            end = row + 1 + min(start + STRIP, len(later))  # W is a triangle: the rest is zero
            strip = np.vstack([later[part, :end], gone[:end], carried[:end]])
            step = np.eye(len(strip) - 2) - np.tril(np.outer(pull[part], weight[part]), -1)
            mixed = np.column_stack([step, step @ weight[part], -pull[part]])
            moved = shrink[part, None] * (mixed @ strip)
            up = self.whitening[row + start : row + start + len(moved)]
            up[:, :row], up[:, row : end - 1] = moved[:, :row], moved[:, row + 1 :]
            carried[:end] += weight[part] @ strip[:-2] + weight[part] @ weight[part] * gone[:end]
        for kept in (self._victims, self._partners):
            kept[row:last] = kept[row + 1 : last + 1]
        self.rows = last

    def explained(self, pairs: Pairs) -> Floats:
        """How much of each pair each whitened row explains; multiplied by whitened values it gives the mean."""
        explained: Floats = covariance(self._catalogue.likeness, pairs, self.pairs, self._shares) @ self.whitening.T
        return explained

    def beside_all(self, one: int, whitened: Floats) -> tuple[Floats, Floats]:
        """The mean of one job beside each type, and of each type beside it, from the whitened values of the rows."""
        weights = whitened @ self.whitening
        return beside_all(self._catalogue.likeness, one, self.pairs, weights, self._shares)

    def variance(self, pairs: Pairs, explained: Floats) -> Floats:
        """The remaining variance of each pair."""
        known = np.einsum("ij,ij->i", explained, explained)
        left: Floats = np.maximum(variance(self._catalogue.likeness, pairs, self._shares) - known, 1e-6)
        return left

    def covariance(self, pairs: Pairs) -> Floats:
        """The remaining covariance of all pairs."""
        explained = self.explained(pairs)
        left: Floats = covariance(self._catalogue.likeness, pairs, pairs, self._shares) - explained @ explained.T
        return left

    def precision(self) -> Floats:
        """The precision of each row given all others: the higher, the better the others predict it."""
        precision: Floats = np.einsum("ij,ij->j", self.whitening, self.whitening)
        return precision

    def without_pair(self, opposites: Indices, whitened: Floats) -> Floats:
        """The error of each row, in standard deviations, if neither it nor its opposite (or itself) were known."""
        pull = whitened @ self.whitening
        own, opposite, shared = self._precisions(opposites)
        errors: Floats = np.abs(opposite * pull - shared * pull[opposites]) / np.sqrt(
            (own * opposite - shared**2) * opposite
        )
        return errors

    def deviations(self, opposites: Indices) -> Floats:
        """The standard deviation of each row if neither it nor its opposite (or itself) were known."""
        own, opposite, shared = self._precisions(opposites)
        deviations: Floats = np.sqrt(opposite / (own * opposite - shared**2))
        return deviations

    def _precisions(self, opposites: Indices) -> tuple[Floats, Floats, Floats]:
        """The precision of each row and of its opposite, and what they share."""
        paired = opposites != np.arange(self.rows)
        own = self.precision()
        shared = np.einsum("ij,ij->j", self.whitening, self.whitening[:, opposites])
        return own, np.where(paired, own[opposites], 1.0), np.where(paired, shared, 0.0)

    def without(self, block: Indices, whitened: Floats) -> Floats:
        """The same for the rows of a block if only the rows outside it were known."""
        columns = self.whitening[:, block]
        uncertain = np.linalg.inv(columns.T @ columns)
        errors: Floats = np.abs(uncertain @ (whitened @ columns)) / np.sqrt(np.diag(uncertain))
        return errors
