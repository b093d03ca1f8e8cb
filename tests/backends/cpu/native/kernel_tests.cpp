// The kernels and the thread pool without Python, to be built with a sanitizer: random convolutions, products and
// windows in every instruction set of the machine.
#include <cstdio>
#include <string>
#include <vector>

#include "base/isa.h"
#include "suites.h"

int main() {
  using namespace sift::cpu;
  test_memory();
  test_threads();
  test_generated_code();
  ThreadPool pool(3);
  const std::vector<std::string> isas = sift::isa::isas_of(sift::isa::cpu_features());
  std::printf("instruction sets:");
  for (const std::string& isa : isas) std::printf(" %s", isa.c_str());
  std::printf("\n");
  for (const std::string& isa : isas) {
    const KernelTable& kernels = *find_kernels(isa.c_str());
    Random random(1);
    test_convolutions(random, pool, kernels, isa);
    test_products(random, pool, kernels, isa);
    test_operators(random, pool, kernels, isa);
    test_views(random, pool, kernels, isa);
    test_gradients(random, pool, kernels, isa);
    test_training(random, pool, kernels, isa);
    test_concurrent_runs(kernels);
    test_concurrent_gradients(kernels);
  }
  Random random(3);
  test_int8(random, pool);
  std::printf("%d failures\n", failure_count());
  return failure_count() == 0 ? 0 : 1;
}
