#include "processors.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace sift::cpu {
namespace {

#if defined(__linux__)
int affinity_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // A mask wider than cpu_set_t fails with EINVAL: such a machine has processors enough to ask the library instead.
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

// The quota in processors, 0 if there is none. cgroup v2: "max 100000" or "150000 100000"; v1: two files.
double cgroup_quota() {
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file) {
    std::string quota;
    double period = 0;
    if (file >> quota >> period && quota != "max" && period > 0) return std::atof(quota.c_str()) / period;
    return 0;
  }
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) return quota / period;
  return 0;
}
#endif

}  // namespace

int usable_cpus() {
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  if (const int allowed = affinity_count(); allowed > 0) cpus = allowed;
  if (const double quota = cgroup_quota(); quota > 0) cpus = std::min(cpus, static_cast<int>(std::ceil(quota)));
#endif
  return std::max(cpus, 1);
}

int current_processor() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

void leave_processor([[maybe_unused]] int processor) {
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cpu_set_t others = allowed;
  CPU_CLR(processor, &others);
  if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof(others), &others) == 0) {
    sched_setaffinity(0, sizeof(allowed), &allowed);
  }
#endif
}

}  // namespace sift::cpu
