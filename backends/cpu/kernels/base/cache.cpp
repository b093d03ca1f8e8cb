#include "base/cache.h"

#include <algorithm>

#if defined(__linux__)
#include <unistd.h>

#include <fstream>
#include <string>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace sift::cpu {
namespace {

// What even small cores have; also where the system does not say.
constexpr std::int64_t kLeastLevel1 = 32 << 10;
constexpr std::int64_t kLeastLevel2 = 256 << 10;
constexpr std::int64_t kUsualLevel3 = 32 << 20;

#if defined(__APPLE__)
std::int64_t system_value(const char* name) {
  std::int64_t value = 0;
  std::size_t size = sizeof(value);
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 ? value : 0;
}
#endif

#if defined(_SC_LEVEL3_CACHE_SIZE)
// The cache of level 3 that the first processor shares with its neighbours; 0 where the system does not say. Of AMD's
// processors, which have one for a few cores each, sysconf reports all of them together.
std::int64_t shared_level3_bytes() {
  for (int index = 0; index < 8; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    int level = 0;
    if (!(std::ifstream(folder + "/level") >> level) || level != 3) continue;
    std::int64_t size = 0;
    char unit = 0;
    std::ifstream file(folder + "/size");
    if (!(file >> size)) return 0;
    file >> unit;
    return unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size;
  }
  return 0;
}

std::int64_t reported_level3_bytes() {
  const std::int64_t all = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const std::int64_t shared = shared_level3_bytes();
  return shared > 0 ? shared : all;
}
#endif

}  // namespace

std::int64_t level1_cache_bytes() {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  static const std::int64_t bytes = std::max<std::int64_t>(sysconf(_SC_LEVEL1_DCACHE_SIZE), kLeastLevel1);
#elif defined(__APPLE__)
  static const std::int64_t bytes = std::max(system_value("hw.l1dcachesize"), kLeastLevel1);
#else
  static const std::int64_t bytes = kLeastLevel1;
#endif
  return bytes;
}

std::int64_t level2_cache_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const std::int64_t bytes = std::max<std::int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE), kLeastLevel2);
#elif defined(__APPLE__)
  static const std::int64_t bytes = std::max(system_value("hw.l2cachesize"), kLeastLevel2);
#else
  static const std::int64_t bytes = kLeastLevel2;
#endif
  return bytes;
}

std::int64_t level3_cache_bytes() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  static const std::int64_t reported = reported_level3_bytes();
#elif defined(__APPLE__)
  static const std::int64_t reported = system_value("hw.l3cachesize");
#else
  static const std::int64_t reported = 0;
#endif
  return reported > 0 ? reported : kUsualLevel3;
}

}  // namespace sift::cpu
