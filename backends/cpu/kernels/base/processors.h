// The processors of the machine that this process may use, and where a thread of it runs.
#pragma once

namespace sift::cpu {

// The number of processors that the calling thread may run on, without regard to quotas of processor time.
int allowed_processors();

// The processor that this thread runs on; -1 if the system does not tell.
int current_processor();

// Migrates this thread from that processor to another that it may run on, if there is one. Its affinity stays the same.
void migrate_from(int processor);

}  // namespace sift::cpu
