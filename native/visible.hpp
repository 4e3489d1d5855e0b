// Which keys of a run of tokens a query row sees: p <= r, and p > r - window where there is a window.
#pragma once

#include "kernel.hpp"
#include "simd.hpp"

namespace DUALPATH_ISA {

struct Range {
    int lo, hi;  // keys [lo, hi) of the run
};

DP_INLINE Range visible(int64_t row, int64_t first, int count, int64_t window) {
    int64_t hi = row - first + 1, lo = window > 0 ? row - window + 1 - first : 0;
    hi = lesser<int64_t>(greater<int64_t>(hi, 0), count);
    lo = lesser<int64_t>(greater<int64_t>(lo, 0), hi);
    return {(int)lo, (int)hi};
}

// Scales of `width` columns of one stream of a block, as factors of what `load` returns.
template <class T>
DP_INLINE void read_scales(const Call &c, const Block &block, int stream, int width, float *to) {
    const unsigned char *from = block.data + c.scales_at + (size_t)stream * c.head_dim * sizeof(bf16);
    for (int d = 0; d < width; d++) to[d] = widen(reinterpret_cast<const bf16 *>(from)[d]) * unit<T>;
}

// Scores of one row, in place: soft cap, mask, then weights e^(s - max'), where max' is the larger of `max` and the
// scores. Entries [0, padded) become weights, 0 where masked. Returns the factor e^(max - max') for what was
// accumulated before, updates max and exp_sum: both are NaN once a visible score is NaN or +inf. `padded` is a multiple
// of W; the range must not be empty.
DP_INLINE float weigh(float *s, int padded, Range seen, float softcap, float &max, float &exp_sum) {
    const float inf = __builtin_inff();
    if (softcap > 0) {
        for (int i = 0; i < padded; i += W) store(s + i, tanh(load(s + i) * (1.0f / softcap)) * softcap);
    }
    for (int i = 0; i < seen.lo; i++) s[i] = -inf;
    for (int i = seen.hi; i < padded; i++) s[i] = -inf;
    vf top = splat(-inf);
    for (int i = 0; i < padded; i += W) top = vmax(top, load(s + i));
    float next = greater(max, highest(top));
    vf shift = splat(next == -inf ? 0.0f : next), total = splat(0.0f);
    for (int i = 0; i < padded; i += W) {
        vf e = exp_neg(load(s + i) - shift);
        total += e;
        store(s + i, e);
    }
    float keep = max == next ? 1.0f : max == -inf ? 0.0f : __builtin_expf(max - next);
    const float kept = exp_sum * keep, added = sum(total);
    exp_sum = kept + added;
    max = next - (added - added);  // NaN where the sum is: comparisons lose one
    return keep;
}

}  // namespace DUALPATH_ISA
