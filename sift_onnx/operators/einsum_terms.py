"""The equation of an Einsum, as labels of axes."""

from __future__ import annotations

__all__ = ["einsum_terms"]


def einsum_terms(equation: str, ranks: list[int]) -> tuple[list[str] | None, str]:
    """Labels of each operand and of the result, an ellipsis spelled out in digits.

    Args:
        equation: the attribute.
        ranks: of the operands.

    Returns:
        The labels; none of operands where the equation does not fit the ranks.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        return None, ""
    most = 0
    for i, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        if "..." in term:
            hidden = rank - len(term.replace("...", ""))
            most = max(most, hidden)
            terms[i] = term.replace("...", "0123456789"[:hidden][::-1])
        if len(terms[i]) != rank:
            return None, ""
    if not arrow:
        counted = "".join(terms)
        right = "..." * ("..." in left) + "".join(
            sorted(c for c in set(counted) if counted.count(c) == 1 and not c.isdigit())
        )
    return terms, right.replace("...", "0123456789"[:most][::-1])
