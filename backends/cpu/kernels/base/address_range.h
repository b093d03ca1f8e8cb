// Addresses without memory: the system provides pages when they are first written.
#pragma once

#include <cstddef>

namespace sift::cpu {

class AddressRange {
 public:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  // Reserves as many bytes as the machine has memory, or as many as the process may still reserve; none if that fails.
  AddressRange();
  // `bytes`, or none where that fails.
  explicit AddressRange(std::size_t bytes);
  ~AddressRange();
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  char* at(std::size_t offset) const { return begin_ + offset; }
  std::size_t size() const { return size_; }

  // Returns the memory of whole large pages in [from, to) to the system; the result is the number of bytes.
  std::size_t drop(std::size_t from, std::size_t to) const;

 private:
  bool reserve(std::size_t bytes);

  void* mapped_ = nullptr;
  std::size_t mapped_size_ = 0;
  char* begin_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace sift::cpu
