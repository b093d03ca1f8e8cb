#include "train/gradient_packing.h"

#include <algorithm>
#include <utility>

#include "train/gradient_blocks.h"

namespace sift::cpu {
namespace {

constexpr std::size_t kPieceBlocks = 16;  // of code

class Packer {
 public:
  Packer(const GradientWeights& weights, const ConvGeometry& geometry, const GradientTile& tile,
         const KernelTable& kernels, GradientCode* code)
      : weights_(weights),
        down_(taps_of_rows(geometry)),
        across_(taps_of_columns(geometry)),
        taps_(down_.count * across_.count),
        phases_(down_.phases() * across_.phases()),
        tile_(tile),
        kernels_(kernels),
        code_(code) {}

  // Weights of the rows from `cursors` on, as far as they are in the slice of columns; moves the cursors.
  GradientSlice slice(std::int64_t row_begin, std::span<std::uint32_t> cursors, std::int64_t column_begin) {
    GradientSlice slice;
    cut_rows(row_begin, cursors, column_begin + tile_.slice_columns);
    list_planes(slice);
    std::ranges::stable_sort(pieces_, std::ranges::greater{}, &GradientPiece::count);
    if (code_ != nullptr) {
      add_code(slice, column_begin);
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

  std::uint32_t most_slots() const { return code_ != nullptr ? kGradientCodeSlots : kMostGradientSlots; }

  void cut_rows(std::int64_t row_begin, std::span<std::uint32_t> cursors, std::int64_t column_end) {
    pieces_.clear();
    planes_.clear();
    for (std::size_t row = 0; row < cursors.size(); ++row) {
      const std::uint32_t end = weights_.starts[static_cast<std::size_t>(row_begin) + row + 1];
      const std::uint32_t begin = cursors[row];
      std::uint32_t& at = cursors[row];
      for (; at < end && weights_.columns_of[at] < column_end; ++at)
        planes_.push_back(plane_of(weights_.columns_of[at]));
      // Pieces of about one size.
      const std::uint32_t most = most_slots();
      const std::uint32_t parts = (at - begin + most - 1) / most;
      for (std::uint32_t part = 0; part < parts; ++part) {
        const std::uint32_t from = begin + (at - begin) * part / parts;
        pieces_.push_back({static_cast<std::uint32_t>(row), from, begin + (at - begin) * (part + 1) / parts - from});
      }
    }
    std::ranges::sort(planes_);
    planes_.erase(std::unique(planes_.begin(), planes_.end()), planes_.end());
  }

  std::int64_t plane_of(std::int64_t column) const {
    if (tile_.by_tap) return column;
    const std::int64_t tap = column % taps_;
    return column / taps_ * phases_ + down_.phase(tap / across_.count) * across_.phases() +
           across_.phase(tap % across_.count);
  }

  GradientSlice::Planes place_of(std::int64_t plane) const {
    if (tile_.by_tap) {
      const std::int64_t tap = plane % taps_;
      return {plane / taps_, 1, tap / across_.count * down_.dilation, tap % across_.count * across_.dilation};
    }
    const std::int64_t phase = plane % phases_;
    return {plane / phases_, 1, down_.first_pixel(phase / across_.phases()),
            across_.first_pixel(phase % across_.phases())};
  }

  void list_planes(GradientSlice& slice) const {
    slice.plane_count = std::ssize(planes_);
    for (const std::int64_t plane : planes_) {
      const GradientSlice::Planes next = place_of(plane);
      if (!slice.planes.empty()) {
        GradientSlice::Planes& last = slice.planes.back();
        if (last.channel + last.count == next.channel && last.y == next.y && last.x == next.x) {
          ++last.count;
          continue;
        }
      }
      slice.planes.push_back(next);
    }
  }

  std::uint32_t offset_of(std::int64_t column) const {
    const auto plane = std::ranges::lower_bound(planes_, plane_of(column)) - planes_.begin();
    const std::int64_t tap = column % taps_;
    const std::int64_t pixel =
        tile_.by_tap ? 0 : down_.step(tap / across_.count) * tile_.plane_w + across_.step(tap % across_.count);
    return static_cast<std::uint32_t>(plane * tile_.plane_floats() + pixel * kLanes);
  }

  // A block of the pieces from `first` on, all with as many slots as that one; returns the first one behind it.
  std::size_t add_block(std::size_t first, GradientSlice& slice) const {
    const auto slots = static_cast<int>(pieces_[first].count);
    const auto together = static_cast<std::size_t>(kernels_.gradient_rows(slots));
    if (slice.runs.empty() || slice.runs.back().slots != slots) {
      slice.runs.push_back({.slots = slots, .blocks = 0, .offsets = nullptr, .rows = nullptr, .sums = nullptr});
    }
    ++slice.runs.back().blocks;
    for (std::size_t i = first; i < first + together; ++i) {
      const GradientPiece piece = i < pieces_.size() ? pieces_[i] : GradientPiece{};
      slice.rows.push_back(piece.row * static_cast<std::uint32_t>(tile_.positions() * kLanes));
      for (std::uint32_t slot = 0; slot < static_cast<std::uint32_t>(slots); ++slot) {
        const bool is_filler = slot >= piece.count;
        slice.offsets.push_back(is_filler ? 0 : offset_of(weights_.columns_of[piece.begin + slot]));
        slice.places.push_back(is_filler ? GradientSlice::kNoPlace : weights_.places[piece.begin + slot]);
      }
    }
    const auto whole = ceil_div(static_cast<std::int64_t>(slice.places.size()), kLanes) * kLanes;
    slice.places.resize(static_cast<std::size_t>(whole), GradientSlice::kNoPlace);
    return first + together;
  }

  void add_code(GradientSlice& slice, std::int64_t column_begin) {
    constexpr std::uint32_t kFloat = sizeof(float);
    const std::vector<std::uint32_t> sizes =
        group_pieces(pieces_, weights_.columns_of, static_cast<std::uint32_t>(column_begin),
                     static_cast<std::uint32_t>(tile_.slice_columns));
    std::vector<Product> products;
    std::vector<GradientProduct> written;
    std::vector<std::uint32_t> rows;
    const GradientPiece* piece = pieces_.data();
    for (std::size_t block = 0; block < sizes.size(); ++block) {
      products.clear();
      written.clear();
      rows.clear();
      for (std::uint32_t row = 0; row < sizes[block]; ++row, ++piece) {
        rows.push_back(piece->row * static_cast<std::uint32_t>(tile_.positions() * kLanes) * kFloat);
        for (std::uint32_t i = piece->begin; i < piece->begin + piece->count; ++i) {
          products.push_back({{offset_of(weights_.columns_of[i]) * kFloat, row}, weights_.places[i]});
        }
      }
      std::ranges::stable_sort(products, {}, [](const Product& product) { return product.code.operand; });
      for (const Product& product : products) {
        written.push_back(product.code);
        slice.places.push_back(product.place);
      }
      slice.places.resize((block + 1) * kGradientCodeFloats, GradientSlice::kNoPlace);
      const auto in_piece = static_cast<std::uint32_t>(block % kPieceBlocks);
      if (in_piece == 0) code_->begin();
      code_->add_block(written, rows);
      if (in_piece + 1 == kPieceBlocks || block + 1 == sizes.size())
        slice.pieces.push_back({code_->end(), in_piece + 1});
    }
  }

  const GradientWeights& weights_;
  GradientTaps down_;
  GradientTaps across_;
  std::int64_t taps_;
  std::int64_t phases_;
  const GradientTile& tile_;
  const KernelTable& kernels_;
  GradientCode* code_;  // null for lists
  // Of the slice at hand.
  std::vector<GradientPiece> pieces_;
  std::vector<std::int64_t> planes_;
};

}  // namespace

PackedGradient pack_gradient(const GradientWeights& weights, const ConvGeometry& geometry, const GradientTile& tile,
                             const KernelTable& kernels, bool generates) {
  PackedGradient packed;
  std::shared_ptr<GradientCode> code;
  if (generates) {
    const auto nnz = static_cast<std::size_t>(weights.nnz());
    const auto most_pieces =
        std::min(nnz, static_cast<std::size_t>(weights.rows * ceil_div(weights.columns, tile.slice_columns)) +
                          nnz / kMostGradientSlots);
    packed.code = code = std::make_shared<GradientCode>(nnz, most_pieces, most_pieces);
  }
  Packer packer(weights, geometry, tile, kernels, code.get());
  const std::int64_t group_rows = weights.rows / geometry.groups;
  for (std::int64_t group = 0; group < geometry.groups; ++group) {
    for (std::int64_t first = 0; first < group_rows; first += tile.chunk_rows) {
      const std::int64_t row_begin = group * group_rows + first;
      GradientChunk& chunk = packed.chunks.emplace_back(
          GradientChunk{.row_begin = row_begin, .rows = std::min(tile.chunk_rows, group_rows - first), .slices = {}});
      const auto from = weights.starts.begin() + row_begin;
      std::vector<std::uint32_t> cursors(from, from + chunk.rows);
      for (std::int64_t column = 0; column < weights.columns; column += tile.slice_columns) {
        GradientSlice slice = packer.slice(row_begin, cursors, column);
        if (!slice.planes.empty()) chunk.slices.push_back(std::move(slice));
      }
    }
  }
  if (code) code->seal();
  return packed;
}

}  // namespace sift::cpu
