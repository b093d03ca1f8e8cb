// Work on rows or pixels, each by itself, in tasks that are worth a thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/op.h"
#include "base/thread_pool.h"

namespace sift::cpu {

// Calls task(first, end) for ranges that are all of `units` together; each unit is of `floats` values, at least one.
template <typename Task>
void for_each_task(ThreadPool& pool, std::int64_t units, std::int64_t floats, const Task& task) {
  constexpr std::int64_t kTaskFloats = 4096;
  const std::int64_t together = ceil_div(kTaskFloats, floats);
  pool.parallel_for(ceil_div(units, together),
                    [&](std::int64_t number) { task(number * together, std::min(units, (number + 1) * together)); });
}

}  // namespace sift::cpu
