// Memory for machine code: first it can be written, then executed, never both.
#pragma once

#include <cstddef>
#include <stdexcept>

namespace sift::cpu {

// The system gives no memory for code, or does not let it be executed: there are other ways to multiply.
class CodeMemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class CodeMemory {
 public:
  // Room for `most` bytes, as address space: pages are taken as they are written. Throws CodeMemoryError.
  explicit CodeMemory(std::size_t most);
  ~CodeMemory();
  CodeMemory(const CodeMemory&) = delete;
  CodeMemory& operator=(const CodeMemory&) = delete;

  std::byte* begin() { return begin_; }
  const std::byte* begin() const { return begin_; }
  std::size_t size() const { return size_; }

  // Gives back what follows the first `used` bytes; these can be executed from here on, and no longer written.
  // Throws CodeMemoryError where the system forbids it.
  void seal(std::size_t used);

 private:
  std::byte* begin_ = nullptr;
  std::size_t size_ = 0;  // whole pages
};

// Whether this process may write code and execute it: on Linux and macOS on x86-64, if no policy of the system forbids
// it and SIFT_JIT is not 0. Found out once; memory for code may be refused later all the same.
bool may_execute_code();

}  // namespace sift::cpu
