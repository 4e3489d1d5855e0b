// What the planner (attend.cpp) and the kernels (kernel.cpp, compiled once per instruction set) agree on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dualpath {

enum class Dtype : int { float32 = 0, bfloat16 = 1, float16 = 2, int8 = 3, float8 = 4 };

struct Block {
    const unsigned char *data;
    int64_t position;  // of its first token
    int32_t tokens;    // valid ones
};

// One call of attend: shapes, inputs and the state to update. Rows are packed; query head h uses kv head h / group.
struct Call {
    int kv_heads, group, head_dim, value_dim, block_tokens;
    Dtype dtype;
    bool latent;
    float scale, softcap;
    int64_t window;
    const float *q;               // [rows, kv_heads * group, head_dim]
    const int64_t *row_position;  // [rows]
    float *max, *exp_sum, *acc;   // [rows, heads], [rows, heads], [rows, heads, value_dim]
    const Block *blocks;
    size_t scales_at;  // of a block in a dtype of one byte: where its scales begin
};

// A layer block in a float dtype that is to be kept in one byte an element: streams [block_tokens, width], of which the
// first `tokens` rows count.
struct Encoding {
    const unsigned char *from;
    Dtype from_dtype, dtype;
    int block_tokens, tokens, width;
    unsigned char *to;
    size_t scales_at;
};

// Few rows against one block and kv head: writes max, exp_sum [rows * group] and acc [rows * group, value_dim] of that
// block alone to `partial`.
struct DecodeItem {
    int32_t row_begin, row_count, block, head;
    size_t offset;  // of `partial` in the buffer of a wave
    float *partial = nullptr;
};

// Folds `count` partials (`stride` floats apart in `items`, step in items) of one kv head into the state.
struct FoldItem {
    int32_t first, step, count;
};

// Many rows, m = row * group + g in [m_begin, m_end) of one kv head, against blocks [block_begin, block_end).
struct PrefillItem {
    int32_t row_begin, m_begin, m_end, block_begin, block_end, head;
};

// A kernel's functions work on items [begin, end). `scratch` returns at least that many floats, 64-byte aligned,
// owned by the calling thread until its next call.
using Scratch = float *(*)(size_t floats);

struct Kernel {
    const char *name;
    void (*decode)(const Call &, const DecodeItem *, int begin, int end, Scratch);
    void (*fold)(const Call &, const FoldItem *, const DecodeItem *, int begin, int end);
    void (*prefill)(const Call &, const PrefillItem *, int begin, int end, Scratch);
    void (*encode)(const Encoding &, int begin, int end, Scratch);  // streams
    float (*read)(const unsigned char *, size_t bytes);  // sums floats with 16 accumulators: read bandwidth
};

// Rows * group of a sequence up to which the decode kernel is used. It depends on the shape alone, never on how many
// blocks a call has, so that the result does not depend on how blocks are grouped into calls.
constexpr int decode_rows = 16;

inline size_t partial_floats(const Call &c, int rows) { return (size_t)rows * c.group * (c.value_dim + 2); }

}  // namespace dualpath
