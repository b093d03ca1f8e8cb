// A plain loop that reads memory: the reference for kernels that wait for their weights.
#pragma once

#include <cstdint>
#include <span>

namespace sift::cpu {

class ThreadPool;

// Reads all of `memory` once, on all threads. The result depends on every word.
std::uint64_t read_all(ThreadPool& pool, std::span<const std::uint64_t> memory);

}  // namespace sift::cpu
