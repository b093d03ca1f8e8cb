"""What operators do to the elements and the shape of what they read, as sets of operator types.

Whatever follows a tensor through a graph says with these which operators it may pass, and why it adds or leaves out
some of them. All are operators of the standard domain.
"""

from __future__ import annotations

__all__ = [
    "DRAWING",
    "ELEMENTWISE_BINARY",
    "ELEMENTWISE_UNARY",
    "MOVING",
    "PARAMETER_VIEWS",
    "REARRANGING",
    "RECURRENT",
    "SHAPE_READING",
]

# One tensor in, one of the same shape out, each element from its own.
ELEMENTWISE_UNARY = frozenset(
    """
    Abs Acos Acosh Asin Asinh Atan Atanh Bernoulli BitwiseNot Cast Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu
    HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not RandomNormalLike RandomUniformLike Reciprocal
    Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
    """.split()
)
# Two tensors or more, which are broadcast against each other.
ELEMENTWISE_BINARY = frozenset(
    """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod
    Mul Or PRelu Pow Sub Sum Where Xor
    """.split()
)

# The elements of the first input, each of them once, in another shape or order.
REARRANGING = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
# No new elements: those of the first input rearranged, picked or repeated, or all inputs joined.
MOVING = REARRANGING | {"Gather", "Slice", "Split", "Expand", "Tile", "Concat"}
# What a parameter may pass on its way to the layer that reads it: the same elements, perhaps in another precision.
PARAMETER_VIEWS = frozenset({"Cast", "Identity", "Transpose"})

# The result says how large the input is, not what it holds.
SHAPE_READING = frozenset({"Shape", "Size"})
# Every run gives other numbers.
DRAWING = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
