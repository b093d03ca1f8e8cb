"""Starting factors from trained weights: truncated singular value decompositions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["grouped_product", "low_rank_factors", "relative_error"]

Matrix = npt.NDArray[np.float64]

# Below it, relative to the largest one, a singular value is taken for zero.
_ZERO = 1e-7


def low_rank_factors(matrix: Matrix, rank: int, groups: int = 1) -> tuple[Matrix, Matrix]:
    """``U [rank, D_in]`` and ``V [D_out, rank]`` with ``V U`` the best approximation of that rank (Eckart-Young).

    Singular values are split evenly between the factors. Where ``rank`` passes that of the matrix, the remaining rows
    of ``U`` and columns of ``V`` are zero.

    Args:
        matrix: ``[D_out, D_in]``; of a grouped convolution the output features of group after group.
        rank: of the approximation, a multiple of ``groups``.
        groups: each is approximated by itself, with ``rank / groups`` rows of ``U`` and columns of ``V``.
    """
    u, v = np.zeros((rank, matrix.shape[1])), np.zeros((matrix.shape[0], rank))
    for rows, features in _groups(matrix.shape[0], rank, groups):
        left, root, right = _truncated(matrix[rows], rank // groups)
        within = slice(features.start, features.start + root.size)
        u[within] = root[:, None] * right
        v[rows, within] = left * root
    return u, v


def _truncated(matrix: Matrix, rank: int) -> tuple[Matrix, npt.NDArray[np.float64], Matrix]:
    """Left vectors, square roots of the largest singular values that are not zero, and right vectors.

    They are taken from the eigenvectors of the smaller Gram matrix, which costs a quarter of a decomposition of a long
    matrix. Its eigenvalues are squares: singular values below :data:`_ZERO` of the largest are lost, and float32
    weights have no such digits.
    """
    if matrix.shape[0] > matrix.shape[1]:
        right, root, left = _truncated(matrix.T, rank)
        return left.T, root, right.T
    squares, vectors = np.linalg.eigh(matrix @ matrix.T)
    singular = np.sqrt(np.maximum(squares[::-1][:rank], 0))
    singular = singular[singular > _ZERO * singular[:1]]
    left = vectors[:, ::-1][:, : singular.size]
    return left, np.sqrt(singular), (left.T @ matrix) / singular[:, None]


def grouped_product(v: Matrix, u: Matrix, groups: int = 1) -> Matrix:
    """``V U``, where the rows of ``U`` that belong to a group see that group's inputs only."""
    product = np.empty((v.shape[0], u.shape[1]))
    for rows, features in _groups(v.shape[0], u.shape[0], groups):
        # At high sparsity there are many more features than the rank of the matrix, and V reads none of the others.
        read = np.flatnonzero(v[rows, features].any(axis=0))
        product[rows] = v[rows, features][:, read] @ u[features][read]
    return product


def _groups(features_out: int, rank: int, groups: int) -> Iterator[tuple[slice, slice]]:
    """Rows of ``V`` and rows of ``U`` of each group."""
    outer, inner = features_out // groups, rank // groups
    for g in range(groups):
        yield slice(g * outer, (g + 1) * outer), slice(g * inner, (g + 1) * inner)


def relative_error(approximation: Matrix, matrix: Matrix, reference: Matrix | None = None) -> float:
    """Frobenius norm of the difference, relative to that of ``reference``, by default ``matrix``."""
    norm = float(np.linalg.norm(matrix if reference is None else reference))
    return float(np.linalg.norm(approximation - matrix)) / norm if norm else 0.0
