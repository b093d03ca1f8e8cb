// The processors of the machine that this process may use, and where a thread of it runs.
#pragma once

namespace sift::cpu {

// Processors that the calling thread may run on. Quotas of processor time are counted elsewhere.
int allowed_processors();

// The one that this thread runs on; -1 where the system does not say.
int current_processor();

// Migrates this thread from that processor to another that it may run on, if there is one. Its affinity stays the same.
void migrate_from(int processor);

}  // namespace sift::cpu
