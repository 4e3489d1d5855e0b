// Merging states of online softmax, and finishing one; and copying blocks. Arrays are validated by the caller.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace dualpath {

// max and exp_sum [count], acc [count, width]; count = rows * heads. An exp_sum of null is 1 throughout.
template <class T>
struct StateOf {
    T *max, *exp_sum, *acc;
};

constexpr float lowest = -std::numeric_limits<float>::infinity();

inline float greater(float a, float b) { return a > b || a != a ? a : b; }  // a NaN must not get lost

// e^(x - top), where a top of -inf means that there is no key at all.
inline float weight(float x, float top) { return std::exp(x - (top == lowest ? 0.0f : top)); }

// One state over the keys of all `parts`, in their order; `into` overlaps none of them.
inline void combine(const std::vector<StateOf<const float>> &parts, StateOf<float> into, int64_t count, int64_t width) {
    for (int64_t i = 0; i < count; i++) {
        float top = lowest, exp_sum = 0;
        float *acc = into.acc + i * width;
        for (const auto &part : parts) top = greater(part.max[i], top);
        bool first = true;
        for (const auto &part : parts) {
            const float scale = weight(part.max[i], top), *from = part.acc + i * width;
            exp_sum += part.exp_sum ? part.exp_sum[i] * scale : scale;
            for (int64_t d = 0; d < width; d++) acc[d] = first ? from[d] * scale : acc[d] + from[d] * scale;
            first = false;
        }
        into.max[i] = top;
        into.exp_sum[i] = exp_sum;
    }
}

// out [count, width] and lse [count], which may lie where acc and max do; `sinks` [heads] are logits without a value, or null.
inline void finish(StateOf<const float> state, const float *sinks, float *out, float *lse, int64_t count, int64_t width,
                   int64_t heads) {
    for (int64_t i = 0; i < count; i++) {
        float top = state.max[i], exp_sum = state.exp_sum[i], keep = 1;
        if (sinks) {
            const float sink = sinks[i % heads];
            top = greater(top, sink);
            keep = weight(state.max[i], top);
            exp_sum = exp_sum * keep + weight(sink, top);
        }
        const bool some = !(exp_sum <= 0);  // a NaN is not nothing
        const float divisor = some ? exp_sum : 1.0f;
        lse[i] = some ? top + std::log(divisor) : lowest;
        const float *acc = state.acc + i * width;
        float *into = out + i * width;
        for (int64_t d = 0; d < width; d++) into[d] = acc[d] * keep / divisor;
    }
}

}  // namespace dualpath
