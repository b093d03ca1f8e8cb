#include "train/weight_gradient/gradient_packing.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "train/weight_gradient/gradient_blocks.h"
#include "weights/changing_values.h"

namespace sift::cpu {
namespace {

constexpr std::size_t kPieceBlocks = 16;  // of code
constexpr std::uint32_t kUnused = std::numeric_limits<std::uint32_t>::max();

// The blocks of a slice that becomes code.
struct ListedCode {
  struct Block {
    std::size_t products;
    std::size_t rows;
  };

  std::vector<Block> blocks;
  std::vector<GradientProduct> products;
  std::vector<std::uint32_t> rows;
};

void write_code(const ListedCode& listed, GradientCode& code, GradientSlice& slice) {
  std::span<const GradientProduct> products(listed.products);
  std::span<const std::uint32_t> rows(listed.rows);
  for (std::size_t block = 0; block < listed.blocks.size(); ++block) {
    const auto in_piece = static_cast<std::uint32_t>(block % kPieceBlocks);
    if (in_piece == 0) code.begin();
    const auto [product_count, row_count] = listed.blocks[block];
    code.add_block(products.first(product_count), rows.first(row_count));
    products = products.subspan(product_count);
    rows = rows.subspan(row_count);
    if (in_piece + 1 == kPieceBlocks || block + 1 == listed.blocks.size()) {
      slice.pieces.push_back({code.end(), in_piece + 1});
    }
  }
}

class Packer {
 public:
  Packer(const SparseWeights& weights, const GradientTile& tile, const KernelTable& kernels, bool generates)
      : weights_(weights), tile_(tile), kernels_(kernels), generates_(generates) {}

  // Weights of the rows from `cursors` on, as far as they are in the slice of columns; moves the cursors. What becomes
  // code is only listed.
  GradientSlice slice(std::int64_t row_begin, std::span<std::size_t> cursors, std::int64_t column_begin,
                      ListedCode& listed) {
    GradientSlice slice;
    column_begin_ = static_cast<std::uint32_t>(column_begin);
    offsets_.assign(static_cast<std::size_t>(std::min(tile_.slice_columns, weights_.columns() - column_begin)),
                    kUnused);
    cut_rows(row_begin, cursors);
    place_columns(slice);
    std::ranges::stable_sort(pieces_, std::ranges::greater{},
                             [](const GradientPiece& piece) { return piece.columns.size(); });
    if (generates_) {
      list_code(slice, listed);
    } else {
      for (std::size_t first = 0; first < pieces_.size();) first = add_block(first, slice);
    }
    return slice;
  }

 private:
  struct Product {
    GradientProduct code;
    std::uint32_t place;
  };

  void cut_rows(std::int64_t row_begin, std::span<std::size_t> cursors) {
    pieces_.clear();
    const std::size_t column_end = column_begin_ + offsets_.size();
    for (std::size_t row = 0; row < cursors.size(); ++row) {
      const auto columns = weights_.row_columns(row_begin + static_cast<std::int64_t>(row));
      const auto places = weights_.row_values(row_begin + static_cast<std::int64_t>(row));
      const std::size_t begin = cursors[row];
      std::size_t& at = cursors[row];
      for (; at < columns.size() && columns[at] < column_end; ++at) offset_of(columns[at]) = 0;
      // Pieces of about one size.
      const std::size_t most = generates_ ? kGradientCodeSlots : kMostGradientSlots;
      const std::size_t parts = (at - begin + most - 1) / most;
      for (std::size_t part = 0; part < parts; ++part) {
        const std::size_t from = begin + (at - begin) * part / parts;
        const std::size_t count = begin + (at - begin) * (part + 1) / parts - from;
        pieces_.push_back({static_cast<std::uint32_t>(row), columns.subspan(from, count), places.subspan(from, count)});
      }
    }
  }

  const TapAxis::Tap& tap_y(std::int64_t column) const {
    return tile_.taps_y.taps[static_cast<std::size_t>(column % tile_.taps() / std::ssize(tile_.taps_x.taps))];
  }
  const TapAxis::Tap& tap_x(std::int64_t column) const {
    return tile_.taps_x.taps[static_cast<std::size_t>(column % std::ssize(tile_.taps_x.taps))];
  }

  // Of all channels.
  std::int64_t plane_of(std::int64_t column) const {
    return column / tile_.taps() * tile_.planes_per_channel() + tap_y(column).copy * std::ssize(tile_.taps_x.copies) +
           tap_x(column).copy;
  }

  GradientSlice::Planes place_of(std::int64_t plane) const {
    const std::int64_t copies_x = std::ssize(tile_.taps_x.copies);
    const std::int64_t copy = plane % tile_.planes_per_channel();
    return {plane / tile_.planes_per_channel(), 1, tile_.taps_y.copies[static_cast<std::size_t>(copy / copies_x)].first,
            tile_.taps_x.copies[static_cast<std::size_t>(copy % copies_x)].first};
  }

  // Planes of the slice, and where in them the columns that have weights begin.
  void place_columns(GradientSlice& slice) {
    std::vector<std::pair<std::int64_t, std::uint32_t>> used;  // planes and columns
    for (std::uint32_t i = 0; i < offsets_.size(); ++i) {
      if (offsets_[i] != kUnused) used.emplace_back(plane_of(column_begin_ + i), column_begin_ + i);
    }
    std::ranges::sort(used);
    std::int64_t last = -1;
    for (const auto& [plane, column] : used) {
      if (plane != last) {
        add_plane(slice, place_of(plane));
        last = plane;
      }
      const std::int64_t pixel = tap_y(column).shift * tile_.plane_w + tap_x(column).shift;
      offset_of(column) = static_cast<std::uint32_t>((slice.plane_count - 1) * tile_.plane_floats() + pixel * kLanes);
    }
  }

  static void add_plane(GradientSlice& slice, const GradientSlice::Planes& next) {
    ++slice.plane_count;
    if (!slice.planes.empty()) {
      GradientSlice::Planes& last = slice.planes.back();
      if (last.channel + last.count == next.channel && last.y == next.y && last.x == next.x) {
        ++last.count;
        return;
      }
    }
    slice.planes.push_back(next);
  }

  // Floats from the beginning of the panel to a column's operands.
  std::uint32_t& offset_of(std::uint32_t column) { return offsets_[column - column_begin_]; }

  // A block of the pieces from `first` on, all with as many slots as that one; returns the first one behind it.
  std::size_t add_block(std::size_t first, GradientSlice& slice) {
    const auto slots = static_cast<int>(pieces_[first].columns.size());
    const auto together = static_cast<std::size_t>(kernels_.gradient_rows(slots));
    if (slice.runs.empty() || slice.runs.back().slots != slots) {
      slice.runs.push_back({.slots = slots, .blocks = 0, .offsets = nullptr, .rows = nullptr, .sums = nullptr});
    }
    ++slice.runs.back().blocks;
    for (std::size_t i = first; i < first + together; ++i) {
      const GradientPiece piece = i < pieces_.size() ? pieces_[i] : GradientPiece{};
      slice.rows.push_back(piece.row * static_cast<std::uint32_t>(tile_.positions() * kLanes));
      for (std::size_t slot = 0; slot < static_cast<std::size_t>(slots); ++slot) {
        const bool is_filler = slot >= piece.columns.size();
        slice.offsets.push_back(is_filler ? 0 : offset_of(piece.columns[slot]));
        slice.places.push_back(is_filler ? GradientSlice::kNoPlace : ChangingValues::index(piece.places[slot]));
      }
    }
    const auto whole = ceil_div(static_cast<std::int64_t>(slice.places.size()), kLanes) * kLanes;
    slice.places.resize(static_cast<std::size_t>(whole), GradientSlice::kNoPlace);
    return first + together;
  }

  void list_code(GradientSlice& slice, ListedCode& listed) {
    constexpr std::uint32_t kFloat = sizeof(float);
    const std::vector<std::uint32_t> sizes =
        group_pieces(pieces_, column_begin_, static_cast<std::uint32_t>(offsets_.size()));
    std::vector<Product> products;
    const GradientPiece* piece = pieces_.data();
    for (std::size_t block = 0; block < sizes.size(); ++block) {
      products.clear();
      for (std::uint32_t row = 0; row < sizes[block]; ++row, ++piece) {
        listed.rows.push_back(piece->row * static_cast<std::uint32_t>(tile_.positions() * kLanes) * kFloat);
        for (std::size_t i = 0; i < piece->columns.size(); ++i) {
          products.push_back({{offset_of(piece->columns[i]) * kFloat, row}, ChangingValues::index(piece->places[i])});
        }
      }
      std::ranges::stable_sort(products, {}, [](const Product& product) { return product.code.operand; });
      for (const Product& product : products) {
        listed.products.push_back(product.code);
        slice.places.push_back(product.place);
      }
      slice.places.resize((block + 1) * kGradientCodeFloats, GradientSlice::kNoPlace);
      listed.blocks.push_back({products.size(), sizes[block]});
    }
  }

  const SparseWeights& weights_;
  const GradientTile& tile_;
  const KernelTable& kernels_;
  bool generates_;
  // Of the slice at hand.
  std::uint32_t column_begin_ = 0;
  std::vector<std::uint32_t> offsets_;  // of its columns
  std::vector<GradientPiece> pieces_;
};

}  // namespace

PackedGradient pack_gradient(const SparseWeights& weights, std::int64_t groups, const GradientTile& tile,
                             const KernelTable& kernels, bool generates, ThreadPool& pool) {
  PackedGradient packed;
  const std::int64_t group_rows = weights.rows() / groups;
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t first = 0; first < group_rows; first += tile.chunk_rows) {
      packed.chunks.push_back({.row_begin = group * group_rows + first,
                               .rows = std::min(tile.chunk_rows, group_rows - first),
                               .slices = {}});
    }
  }
  // Comparing rows takes most of the time; what is written of them has to stand in one piece of memory.
  std::vector<std::vector<ListedCode>> listed(packed.chunks.size());
  pool.parallel_for(std::ssize(packed.chunks), [&](std::int64_t i) {
    GradientChunk& chunk = packed.chunks[static_cast<std::size_t>(i)];
    Packer packer(weights, tile, kernels, generates);
    std::vector<std::size_t> cursors(static_cast<std::size_t>(chunk.rows));
    for (std::int64_t column = 0; column < weights.columns(); column += tile.slice_columns) {
      ListedCode code;
      GradientSlice slice = packer.slice(chunk.row_begin, cursors, column, code);
      if (slice.planes.empty()) continue;
      chunk.slices.push_back(std::move(slice));
      if (generates) listed[static_cast<std::size_t>(i)].push_back(std::move(code));
    }
  });
  if (!generates) return packed;
  const auto nnz = static_cast<std::size_t>(weights.nnz());
  const auto most_pieces =
      std::min(nnz, static_cast<std::size_t>(weights.rows() * ceil_div(weights.columns(), tile.slice_columns)) +
                        nnz / kMostGradientSlots);
  const auto code = std::make_shared<GradientCode>(nnz, most_pieces, most_pieces);
  for (std::size_t chunk = 0; chunk < packed.chunks.size(); ++chunk) {
    for (std::size_t slice = 0; slice < packed.chunks[chunk].slices.size(); ++slice) {
      write_code(listed[chunk][slice], *code, packed.chunks[chunk].slices[slice]);
    }
  }
  code->seal();
  packed.code = code;
  return packed;
}

}  // namespace sift::cpu
