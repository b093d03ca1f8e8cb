// The processors of the machine that this process may use, and where a thread of it runs.
#pragma once

namespace sift::cpu {

// Processors that this process may use: its affinity mask, cut to the quota of its cgroup.
int usable_cpus();

// The one that this thread runs on; -1 where the system does not tell.
int current_processor();

// Moves this thread off that processor, if it may run on another. What it may run on stays as it was.
void leave_processor(int processor);

}  // namespace sift::cpu
