#include "jit/code_memory.h"

#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>

#include "base/fork_safe_mutex.h"

#if defined(__x86_64__) && (defined(__linux__) || defined(__APPLE__))
#define SIFT_HAS_CODE_MEMORY
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#endif

namespace sift::cpu {

#if defined(SIFT_HAS_CODE_MEMORY)

namespace {

// Two large pages: less is looked up as fast in small ones.
constexpr std::size_t kHuge = std::size_t{4} << 20;

[[noreturn]] void refuse(const char* what) {
  throw CodeMemoryError(std::string(what) + " (" + std::generic_category().message(errno) +
                        "); SIFT_JIT=0 does without");
}

std::size_t whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

CodeMemory::CodeMemory(std::size_t most) : size_(whole_pages(most)) {
  if (size_ == 0) return;
  void* const pages = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) refuse("the system has no memory for generated code");
#if defined(__linux__)
  if (size_ >= kHuge) madvise(pages, size_, MADV_HUGEPAGE);
#endif
  begin_ = static_cast<std::byte*>(pages);
}

CodeMemory::~CodeMemory() {
  if (begin_ != nullptr) munmap(begin_, size_);
}

void CodeMemory::seal(std::size_t used) {
  const std::size_t kept = whole_pages(used);
  if (kept < size_) {
    munmap(begin_ + kept, size_ - kept);
    size_ = kept;
    if (kept == 0) begin_ = nullptr;
  }
  if (kept > 0 && mprotect(begin_, kept, PROT_READ | PROT_EXEC) != 0) {
    refuse("the system does not let generated code be executed");
  }
}

namespace {

bool detect() {
  const char* const setting = std::getenv("SIFT_JIT");
  if (setting != nullptr && std::string_view(setting) == "0") return false;
  try {
    CodeMemory memory(1);
    *memory.begin() = std::byte{0xC3};  // ret
    memory.seal(1);
    return true;
  } catch (const CodeMemoryError&) {
    return false;
  }
}

}  // namespace

#else

CodeMemory::CodeMemory(std::size_t) { throw CodeMemoryError("code is not generated for this machine"); }
CodeMemory::~CodeMemory() = default;
void CodeMemory::seal(std::size_t) {}

namespace {
bool detect() { return false; }
}  // namespace

#endif

bool may_execute_code() {
  // A child of a fork would wait for a thread that it does not have, had that been interrupted here.
  static ForkSafeMutex detecting;
  const std::lock_guard lock(detecting);
  static const bool may = detect();
  return may;
}

}  // namespace sift::cpu
