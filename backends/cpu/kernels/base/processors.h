// The processors of the machine that this process may use, and where a thread of it runs.
#pragma once

namespace sift::cpu {

// Processors that the calling thread may run on. How much of their time there is, is asked for where threads are counted.
int allowed_processors();

// The one that this thread runs on; -1 where the system does not tell.
int current_processor();

// Moves this thread off that processor, if it may run on another. What it may run on stays as it was.
void leave_processor(int processor);

}  // namespace sift::cpu
