// Worker threads that outlive a call. The calling thread works too; idle workers sleep.
#pragma once

#include <cstddef>

namespace dualpath {

// Calls work(context, begin, end) for chunks of [0, items) on up to `threads` threads, the caller among them, and
// returns when all are done. Chunks are claimed in ascending order. If another thread is using the workers, the caller
// does everything itself. `work` must not throw.
void parallel(int items, int chunk, int threads, void (*work)(void *, int begin, int end), void *context);

// At least that many floats, 64-byte aligned; they belong to the calling thread until it asks again.
float *thread_scratch(size_t floats);

}  // namespace dualpath
