#include "base/array_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace sift::cpu {

std::unique_ptr<AlignedBuffer> ArrayPool::take(std::size_t count) {
  std::unique_ptr<AlignedBuffer> buffer;
  {
    const std::lock_guard lock(mutex_);
    const auto best = std::ranges::min_element(free_, {}, [count](const auto& idle) {
      return idle->capacity() >= count ? idle->capacity() : std::numeric_limits<std::size_t>::max();
    });
    if (best != free_.end() && (*best)->capacity() >= count && (*best)->capacity() - count <= count / kMostWaste) {
      buffer = std::move(*best);
      free_.erase(best);
      idle_ -= buffer->capacity();
    }
  }
  if (!buffer) {
    buffer = std::make_unique<AlignedBuffer>();
    buffer->floats(count);
  }
  Buffers surplus;  // freed when others may go on
  const std::lock_guard lock(mutex_);
  out_ += buffer->capacity();
  most_out_ = std::max(most_out_, out_);
  take_surplus(surplus);
  return buffer;
}

void ArrayPool::give_back(std::unique_ptr<AlignedBuffer> buffer) {
  const std::lock_guard lock(mutex_);
  out_ -= buffer->capacity();
  idle_ += buffer->capacity();
  free_.push_back(std::move(buffer));
}

void ArrayPool::take_surplus(Buffers& surplus) {
  while (!free_.empty() && out_ + idle_ > most_out_ + most_out_ / kMostSurplus) {
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
