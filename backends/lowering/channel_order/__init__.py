"""Images with their channels last, as Keras and TensorFlow have them, put into the order of convolutions.

Exporters turn each image before a convolution and after it, and leave what lies between in the order of their
framework. Kernels would copy values twice per layer. Here whole groups of values change their order, where that takes
fewer copies: :func:`~sift_onnx.backends.lowering.channel_order.rewriting.channels_first`.
"""

from sift_onnx.backends.lowering.channel_order.rewriting import channels_first

__all__ = ["channels_first"]
