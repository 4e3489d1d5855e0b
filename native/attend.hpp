// Plans one call of attend: which kernel for which rows, in what order, on how many threads.
#pragma once

#include <vector>

#include "kernel.hpp"

namespace dualpath {

struct Sequence {
    int32_t row_begin, row_end, block_begin, block_end;
};

// Updates the state that `call` points to. Blocks and sequences must have been validated.
void attend(const Kernel &kernel, const Call &call, const std::vector<Sequence> &sequences, int threads);

// Quantises a layer block of that many streams, which must have been validated, on the calling thread.
void encode(const Kernel &kernel, const Encoding &encoding, int streams);

// Reads `bytes` with `threads` threads in the order that attend would; returns a sum, so that nothing is optimised
// away.
float read_all(const Kernel &kernel, const unsigned char *data, size_t bytes, int threads);

}  // namespace dualpath
