// The parts of the extension module. Those that derive from Op come after bind_ops.
#pragma once

#include <nanobind/nanobind.h>

#include "conv/conv.h"
#include "weights/packed_rows.h"
#include "weights/sparse_weights.h"

namespace sift::cpu {

// What the machine is, how fast it multiplies, and its threads.
void bind_machine(nanobind::module_& module);

// Op, and the operators without packed weights.
void bind_ops(nanobind::module_& module);

// Operators that move values, and compute nothing or means of two.
void bind_copies(nanobind::module_& module);

// Convolution and matrix product, and the weights that they are made from.
void bind_products(nanobind::module_& module);

// Layers in bands of rows.
void bind_banded(nanobind::module_& module);

// Recurrent layers.
void bind_recurrent(nanobind::module_& module);

// Operators on values of tensors where they lie, and softmax.
void bind_views(nanobind::module_& module);

// Operators that find values, and take values by where they are.
void bind_selection(nanobind::module_& module);

// How weights are stored in files.
void bind_stored_weights(nanobind::class_<SparseWeights>& weights);
void bind_stored_rows(nanobind::class_<PackedRows>& rows);

// Operators one after the other, and memory for them.
void bind_sequence(nanobind::module_& module);

// Convolutions whose weights change.
void bind_trainable_conv(nanobind::module_& module);

// How a convolution is run, as Python sees it.
nanobind::typed<nanobind::dict, nanobind::str, nanobind::any> dict_of(const Conv::Description& description);

// Normalizations of training.
void bind_training_norms(nanobind::module_& module);

// Activations, pooling, sums and conversions of training.
void bind_training_ops(nanobind::module_& module);

// Depthwise convolutions of training.
void bind_depthwise(nanobind::module_& module);

// Sparse int8: weights in quads, and operators on quads.
void bind_int8(nanobind::module_& module);

// The gradient of active weights.
void bind_weight_gradient(nanobind::module_& module);

}  // namespace sift::cpu
