// A layer block in a float dtype to one byte an element, with a scale per column and stream: dualpath.kv.codecs, which
// says what is stored, bit for bit. Done once per block, when it is sealed.
#pragma once

#include "visible.hpp"

namespace DUALPATH_ISA {

// The nearest integers, ties to even. No trick with a large constant: a compiler may fuse that with a product.
DP_INLINE vi nearest(vf x) {
#if defined(__AVX512F__)
    return (vi)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
    return (vi)_mm256_cvtps_epi32((__m256)x);
#else
    vi r;
    for (int i = 0; i < W; i++) r[i] = (int32_t)__builtin_rintf(x[i]);
    return r;
#endif
}

DP_INLINE vi bits_of(vf x) { return (vi)x; }

// Codes of W quotients of magnitude at most `largest`, but for rounding.
DP_INLINE vi code_of(vf x, int8) {
    vi r = nearest(x);
    r = r > 127 ? vi{} + 127 : r;
    return r < -127 ? vi{} - 127 : r;
}
DP_INLINE vi code_of(vf x, fp8) {
    vf magnitude = (vf)(bits_of(x) & 0x7fffffff);
    magnitude = magnitude > 448.0f ? splat(448.0f) : magnitude;
    vi own = bits_of(magnitude);
    vi normal = ((own + 0x7ffff + ((own >> 20) & 1)) >> 20) - ((127 - 7) << 3);
    vi tiny = nearest(magnitude * 512.0f);
    vi code = magnitude < 0x1p-6f ? tiny : normal;
    return code | ((bits_of(x) >> 24) & 0x80);
}
DP_INLINE float largest(int8) { return 127.0f; }
DP_INLINE float largest(fp8) { return 448.0f; }

// W elements of a row of which n exist.
template <class T>
DP_INLINE vf load_some(const T *row, int n) {
    if (n >= W) return load(row);
    T some[W] = {};
    memcpy(some, row, n * sizeof(T));
    return load(some);
}

template <class From, class To>
void encode_stream(const Encoding &e, int stream, Scratch scratch) {
    const int padded = (e.width + W - 1) / W * W;
    const size_t elements = (size_t)e.block_tokens * e.width;
    const From *from = reinterpret_cast<const From *>(e.from) + stream * elements;
    unsigned char *to = e.to + stream * elements;
    unsigned char *scales = e.to + e.scales_at + (size_t)stream * e.width * 2;
    float *high = scratch(2 * (size_t)padded), *inverse = high + padded;  // bits of magnitudes: NaN is above infinity

    for (int d = 0; d < padded; d++) high[d] = 0;
    for (int t = 0; t < e.tokens; t++)
        for (int d = 0; d < e.width; d += W) {
            vi seen = bits_of(load(high + d));
            vi own = bits_of(load_some(from + (size_t)t * e.width + d, e.width - d)) & 0x7fffffff;
            store(high + d, (vf)(own > seen ? own : seen));
        }
    bool whole = true;  // no channel with an element that is not finite
    for (int d = 0; d < padded; d += W) {
        vf top = load(high + d);
        vi finite = bits_of(top) < 0x7f800000;
        vf scale = vmax(top / largest(To{}), splat(0x1p-126f));
        vi rounded = (bits_of(scale) + 0xffff) & (int32_t)0xffff0000;
        rounded = finite ? rounded : vi{} + 0x7fc00000;
        store(inverse + d, 1.0f / (vf)rounded);
        store(high + d, (vf)rounded);
        for (int i = 0; i < W; i++) whole = whole && finite[i];
    }
    for (int d = 0; d < e.width; d++) memcpy(scales + d * 2, reinterpret_cast<unsigned char *>(high + d) + 2, 2);
    for (int t = 0; t < e.tokens; t++)
        for (int d = 0; d < e.width; d += W) {
            const size_t at = (size_t)t * e.width + d;
            const int n = lesser(e.width - d, W);
            vb codes = __builtin_convertvector(code_of(load_some(from + at, n) * load(inverse + d), To{}), vb);
            memcpy(to + at, &codes, n);
        }
    if (!whole)
        for (int d = 0; d < e.width; d++)
            for (int t = 0; high[d] != high[d] && t < e.tokens; t++) to[(size_t)t * e.width + d] = 0;
    memset(to + (size_t)e.tokens * e.width, 0, elements - (size_t)e.tokens * e.width);
}

}  // namespace DUALPATH_ISA
