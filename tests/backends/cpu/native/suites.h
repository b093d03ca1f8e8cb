// The tests, by theme; each runs its kernels in one instruction set unless it needs none.
#pragma once

#include <string>

#include "base/thread_pool.h"
#include "testing.h"

namespace sift::cpu {

void test_convolutions(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa);
void test_products(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa);
void test_operators(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa);
void test_views(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa);
void test_gradients(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa);
void test_training(Random& random, ThreadPool& pool, const KernelTable& kernels, const std::string& isa);
void test_concurrent_gradients(const KernelTable& kernels);
void test_concurrent_runs(const KernelTable& kernels);
// In every instruction set of the machine.
void test_int8(Random& random, ThreadPool& pool);
void test_memory();
void test_threads();
void test_generated_code();

}  // namespace sift::cpu
