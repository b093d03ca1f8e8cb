// Kernels of packed weights with AMX: int8 with at most a scale per row, by several rows of x.
#pragma once

#include "simd/packed/amx_panels.h"
#include "simd/packed/amx_rows.h"
#include "simd/packed/wide.h"

namespace sift::cpu::SIFT_ISA {

template <bool Masked>
inline void multiply_in_tiles(const PackedRowsArgs& args) {
  switch (limbs_of(args.form)) {
    case 2: return multiply_few_rows<2, Masked>(args);
    case 3: return multiply_few_rows<3, Masked>(args);
    default: return multiply_few_rows<4, Masked>(args);
  }
}

inline void multiply_amx(const PackedRowsArgs* parts, int count) {
  const bool masked = parts[0].masks != nullptr;
  for (int part = 0; part < count;) {
    const PackedRowsArgs& args = parts[part];
    int end = part + 1;
    if (!is_in_tiles(args.form)) {
      multiply_wide(args);
      part = end;
      continue;
    }
    while (end < count && is_in_tiles(parts[end].form)) ++end;
    const TileRegisters registers;
    if (end - part > 1) {
      masked ? multiply_panels<true>(parts + part, end - part) : multiply_panels<false>(parts + part, end - part);
    } else {
      masked ? multiply_in_tiles<true>(args) : multiply_in_tiles<false>(args);
    }
    part = end;
  }
}

inline double amx_list_below(const PackedKind& kind, int x_rows) {
  return is_fixed(kind) ? 0 : wide_list_below(kind, x_rows);
}

inline std::int64_t amx_most_rows(const PackedKind& kind, double density) {
  return is_fixed(kind) ? kAnyRows : wide_most_rows(kind, density);
}

}  // namespace sift::cpu::SIFT_ISA
