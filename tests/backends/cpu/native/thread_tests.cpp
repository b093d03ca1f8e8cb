#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/processors.h"
#include "conv/conv.h"
#include "suites.h"

namespace sift::cpu {
namespace {

void test_pool() {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
      pool.parallel_for(count, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
      for (const auto& c : calls) check(c == 1, "every index is called once");
    }
    std::atomic<int> nested{0};
    pool.parallel_for(6, [&](std::int64_t) { pool.parallel_for(5, [&](std::int64_t) { ++nested; }); });
    check(nested == 30, "loops within loops");
    bool thrown = false;
    try {
      pool.parallel_for(9, [](std::int64_t i) {
        if (i == 4) throw std::runtime_error("four");
      });
    } catch (const std::runtime_error&) {
      thrown = true;
    }
    check(thrown, "an exception reaches the caller");
  }
}

// More callers than loops that workers go to.
void test_concurrent_loops() {
  ThreadPool pool(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 11; ++caller) {
    callers.emplace_back([&, caller] {
      for (int repeat = 0; repeat < 60; ++repeat) {
        std::vector<std::atomic<int>> calls(static_cast<std::size_t>(1 + (repeat * 7 + caller) % 50));
        const auto count = static_cast<std::int64_t>(calls.size());
        pool.parallel_for(count, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
        for (const auto& c : calls) wrong += c != 1;
        bool thrown = false;
        try {
          pool.parallel_for(9, [&](std::int64_t i) {
            if (i == caller % 9) throw std::runtime_error("one of nine");
          });
        } catch (const std::runtime_error&) {
          thrown = true;
        }
        wrong += !thrown;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  check(wrong == 0, "loops of several callers at once");
}

// Some give up their turn, some throw, and the pool goes while servers are idle.
void test_turns() {
  for (const int most : {1, 2}) {
    std::atomic<int> at_once{0};
    std::atomic<int> most_at_once{0};
    std::atomic<int> wrong{0};
    Turns turns(most);
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 6; ++caller) {
      callers.emplace_back([&, caller] {
        for (int repeat = 0; repeat < 40; ++repeat) {
          int ran = 0;
          bool thrown = false;
          try {
            turns.run([&](Turns::Turn&) {
              most_at_once = std::max(most_at_once.load(), ++at_once);
              ++ran;
              --at_once;
              if (repeat % 7 == caller) throw std::runtime_error("one of seven");
            });
          } catch (const std::runtime_error&) {
            thrown = true;
          }
          wrong += ran != 1 || thrown != (repeat % 7 == caller);
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    check(wrong == 0, "each request runs once, and errors reach their callers");
    check(most_at_once <= most, "no more requests than there are turns");
  }
  Turns turns(1);
  std::atomic<bool> is_beside{false};
  std::thread other;
  turns.run([&](Turns::Turn& turn) {
    other = std::thread([&] { turns.run([&](Turns::Turn&) { is_beside = true; }); });
    while (!is_beside) turn.pass_if_long();
  });
  other.join();
  check(is_beside, "a long request lets others begin");
}

// As many requests as processors: each does all of its loops itself.
void test_requests_beside_each_other() {
  const int processors = allowed_processors();
  if (processors < 2) return;
  ThreadPool pool(processors);
  std::atomic<int> begun{0};
  std::atomic<int> elsewhere{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < processors; ++caller) {
    callers.emplace_back([&] {
      pool.in_turn([&](Turns::Turn*) {
        const std::thread::id own = std::this_thread::get_id();
        ++begun;
        while (begun < processors) std::this_thread::yield();
        for (int loop = 0; loop < 20; ++loop) {
          pool.parallel_for(50, [&](std::int64_t) { elsewhere += std::this_thread::get_id() != own; });
        }
        ++begun;
        while (begun < 2 * processors) std::this_thread::yield();
      });
    });
  }
  for (std::thread& caller : callers) caller.join();
  check(elsewhere == 0, "requests at once share the processors");
}

}  // namespace

// Several sessions may share a pool and a plan.
void test_concurrent_runs(const KernelTable& kernels) {
  Random random(7);
  ThreadPool pool(3);
  const Shape shape{2, 24, 14, 14};
  std::vector<float> weights(std::size_t{40} * 24 * 9);
  for (float& weight : weights) weight = random.chance(0.1) ? random.value() : 0.0F;
  ConvOptions options;
  options.geometry.kernel_h = options.geometry.kernel_w = 3;
  options.geometry.pad_top = options.geometry.pad_left = options.geometry.pad_bottom = options.geometry.pad_right = 1;
  options.layout = Layout::nchw;
  const Conv conv(std::make_shared<const SparseWeights>(SparseWeights::from_dense(40, 216, weights)), {}, options,
                  kernels);
  Tensor in = random_tensor(random, element_count(shape, Layout::nchw));
  Tensor expected = run(conv, pool, kernels, shape, in, nullptr);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&, caller] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        Tensor y = run(conv, pool, kernels, shape, in, nullptr);
        for (std::int64_t i = 0; i < 2 * 40 * 14 * 14; ++i) wrong += y[i] != expected[i];
        // Some pack for other shapes meanwhile, from the source or from each other's packings.
        conv.prepare({1, 24, 14 + repeat % 3 * 9, 14 + caller * 7}, 1 + repeat % 3, nullptr);
        if (repeat == 5 + caller) conv.release_source();
        wrong += conv.weight_bytes() == 0;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  check(wrong == 0, "concurrent runs give the same bits");
}

void test_threads() {
  test_pool();
  test_concurrent_loops();
  test_turns();
  test_requests_beside_each_other();
}

}  // namespace sift::cpu
