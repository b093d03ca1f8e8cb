#include "base/array_pool.h"

#include <algorithm>
#include <utility>

namespace sift::cpu {

std::unique_ptr<AlignedBuffer> ArrayPool::take(std::size_t count) {
  std::unique_ptr<AlignedBuffer> buffer;
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [count](const auto& idle) { return idle->capacity() >= count && idle->capacity() / 2 <= count; };
    if (const auto found = std::ranges::find_if(free_, fits); found != free_.end()) {
      buffer = std::move(*found);
      free_.erase(found);
      idle_ -= buffer->capacity();
    }
  }
  if (!buffer) {
    buffer = std::make_unique<AlignedBuffer>();
    buffer->floats(count);
  }
  const std::lock_guard lock(mutex_);
  out_ += buffer->capacity();
  most_out_ = std::max(most_out_, out_);
  return buffer;
}

void ArrayPool::give_back(std::unique_ptr<AlignedBuffer> buffer) {
  std::deque<std::unique_ptr<AlignedBuffer>> surplus;  // freed when others may go on
  const std::lock_guard lock(mutex_);
  out_ -= buffer->capacity();
  idle_ += buffer->capacity();
  free_.push_back(std::move(buffer));
  while (idle_ > most_out_) {
    idle_ -= free_.front()->capacity();
    surplus.push_back(std::move(free_.front()));
    free_.pop_front();
  }
}

std::size_t ArrayPool::idle() const {
  const std::lock_guard lock(mutex_);
  return idle_;
}

}  // namespace sift::cpu
