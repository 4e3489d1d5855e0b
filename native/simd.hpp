// Vectors of `W` floats over GCC/Clang vector extensions. This header is compiled once per instruction set
// (see kernel.cpp); only widening of 16-bit floats uses intrinsics, where the compilers do badly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define DP_INLINE inline __attribute__((always_inline))
#define DP_UNROLL _Pragma("GCC unroll 32")

namespace DUALPATH_ISA {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;  // SSE2, NEON, and whatever a compiler splits 16 bytes into
#endif

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef float vfu __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t viu __attribute__((vector_size(W * 4), aligned(2), may_alias));
typedef uint16_t vh __attribute__((vector_size(W * 2)));
typedef uint16_t vhu __attribute__((vector_size(W * 2), aligned(2), may_alias));
typedef int8_t vb __attribute__((vector_size(W)));
typedef int8_t vbu __attribute__((vector_size(W), aligned(1), may_alias));

// Stored element types. They are distinct types so that templates can tell bf16 from fp16.
struct bf16 {
    uint16_t bits;
};
struct fp16 {
    uint16_t bits;
};
struct int8 {
    int8_t bits;
};
struct fp8 {  // 1.4.3, exponent bias 7
    uint8_t bits;
};

// Elements of one byte have a scale for each column of a block, as bf16. What `load` and `widen` return of an element
// must be multiplied by it and by `unit`: an fp8 is widened by way of fp16, whose exponents mean 2^8 less.
template <class T>
constexpr bool scaled = sizeof(T) == 1;
template <class T>
constexpr float unit = 1.0f;
template <>
constexpr float unit<fp8> = 256.0f;

template <class A>
DP_INLINE A lesser(A a, A b) {
    return b < a ? b : a;
}
template <class A>
DP_INLINE A greater(A a, A b) {
    return a < b ? b : a;
}

DP_INLINE vf splat(float x) { return x - vf{}; }
DP_INLINE vf load(const float *p) { return *reinterpret_cast<const vfu *>(p); }
DP_INLINE void store(float *p, vf x) { *reinterpret_cast<vfu *>(p) = x; }
// Of a NaN and another, b: in a chain of these a NaN may get lost.
DP_INLINE vf vmax(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return a > b ? a : b;
#endif
}

DP_INLINE vf load(const bf16 *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
    vh raw = *reinterpret_cast<const vhu *>(p);
    return (vf)(__builtin_convertvector(raw, vi) << 16);
#endif
}

DP_INLINE vf load(const fp16 *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
    // Shift exponent and mantissa into place and let one multiplication rebias them, subnormals included.
    vh raw = *reinterpret_cast<const vhu *>(p);
    vi x = __builtin_convertvector(raw, vi);
    vi sign = (x & 0x8000) << 16, magnitude = (x & 0x7fff) << 13;
    vf scaled = (vf)magnitude * 0x1p112f;
    vi special = (x & 0x7c00) == 0x7c00;  // inf and NaN keep an all-ones exponent
    return (vf)((vi)scaled | sign | (special & 0x7f800000));
#endif
}

DP_INLINE vf load(const int8 *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    vb raw = *reinterpret_cast<const vbu *>(p);
    return __builtin_convertvector(raw, vf);
#endif
}

DP_INLINE vf load(const fp8 *p) {
#if defined(__AVX512F__)
    __m256i x = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    return (vf)_mm512_cvtph_ps(_mm256_and_si256(x, _mm256_set1_epi16((short)0xbfff)));
#elif defined(__AVX2__)
    __m128i x = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p)), 7);
    return (vf)_mm256_cvtph_ps(_mm_and_si128(x, _mm_set1_epi16((short)0xbfff)));
#else
    vb raw = *reinterpret_cast<const vbu *>(p);
    vi x = __builtin_convertvector(raw, vi);
    vf magnitude = (vf)((x & 0x7f) << 20) * 0x1p112f;
    return (vf)((vi)magnitude | (x & (int32_t)0x80000000));
#endif
}

DP_INLINE float widen(float x) { return x; }
DP_INLINE float widen(int8 x) { return x.bits; }
DP_INLINE float widen(fp8 x) {
    uint32_t bits = (uint32_t)(x.bits & 0x7f) << 20;
    float f;
    memcpy(&f, &bits, 4);
    f *= 0x1p112f;
    return x.bits & 0x80 ? -f : f;
}
DP_INLINE float widen(bf16 x) {
    uint32_t bits = (uint32_t)x.bits << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
DP_INLINE float widen(fp16 x) {
    uint32_t bits = (uint32_t)(x.bits & 0x7fff) << 13;
    float f;
    memcpy(&f, &bits, 4);
    f *= 0x1p112f;
    memcpy(&bits, &f, 4);
    if ((x.bits & 0x7c00) == 0x7c00) bits |= 0x7f800000u;
    bits |= (uint32_t)(x.bits & 0x8000) << 16;
    memcpy(&f, &bits, 4);
    return f;
}

// --- shuffles --------------------------------------------------------------------------------------------------------
// In-lane unpacks of single and of pairs of floats, and moves of whole 128-bit lanes.
#if defined(__AVX512F__)
#define DP_LANES(f) f(0), f(4), f(8), f(12)
DP_INLINE vf lanes_even(vf a, vf b) { return (vf)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x88); }
DP_INLINE vf lanes_odd(vf a, vf b) { return (vf)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xdd); }
#elif defined(__AVX2__)
#define DP_LANES(f) f(0), f(4)
DP_INLINE vf lanes_even(vf a, vf b) { return (vf)_mm256_permute2f128_ps((__m256)a, (__m256)b, 0x20); }
DP_INLINE vf lanes_odd(vf a, vf b) { return (vf)_mm256_permute2f128_ps((__m256)a, (__m256)b, 0x31); }
#else
#define DP_LANES(f) f(0)
#endif
#define DP_LO1(l) l, W + l, l + 1, W + l + 1
#define DP_HI1(l) l + 2, W + l + 2, l + 3, W + l + 3
#define DP_LO2(l) l, l + 1, W + l, W + l + 1
#define DP_HI2(l) l + 2, l + 3, W + l + 2, W + l + 3
DP_INLINE vf unpack_lo1(vf a, vf b) { return __builtin_shufflevector(a, b, DP_LANES(DP_LO1)); }
DP_INLINE vf unpack_hi1(vf a, vf b) { return __builtin_shufflevector(a, b, DP_LANES(DP_HI1)); }
DP_INLINE vf unpack_lo2(vf a, vf b) { return __builtin_shufflevector(a, b, DP_LANES(DP_LO2)); }
DP_INLINE vf unpack_hi2(vf a, vf b) { return __builtin_shufflevector(a, b, DP_LANES(DP_HI2)); }

// Interleave: a0 b0 a1 b1 ...; `low` is the first W of the 2W results.
DP_INLINE void interleave(vf a, vf b, vf &low, vf &high) {
#if defined(__AVX512F__)
    low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    high = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
    low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    low = unpack_lo1(a, b);
    high = unpack_hi1(a, b);
#endif
}

// Sums of W vectors: element i of the result is the sum of the elements of a[i].
DP_INLINE vf reduce(vf *a) {
    vf c[W / 4];
    DP_UNROLL
    for (int i = 0; i < W / 4; i++) {
        vf lo = unpack_lo1(a[4 * i], a[4 * i + 1]) + unpack_hi1(a[4 * i], a[4 * i + 1]);
        vf hi = unpack_lo1(a[4 * i + 2], a[4 * i + 3]) + unpack_hi1(a[4 * i + 2], a[4 * i + 3]);
        c[i] = unpack_lo2(lo, hi) + unpack_hi2(lo, hi);
    }
#if defined(__AVX512F__)
    vf d0 = lanes_even(c[0], c[1]) + lanes_odd(c[0], c[1]);
    vf d1 = lanes_even(c[2], c[3]) + lanes_odd(c[2], c[3]);
    return lanes_even(d0, d1) + lanes_odd(d0, d1);
#elif defined(__AVX2__)
    return lanes_even(c[0], c[1]) + lanes_odd(c[0], c[1]);
#else
    return c[0];
#endif
}

// Transpose W x W floats in registers.
DP_INLINE void transpose(vf *a) {
    DP_UNROLL
    for (int i = 0; i < W; i += 4) {  // 4x4 inside each lane
        vf p = unpack_lo1(a[i], a[i + 1]), q = unpack_hi1(a[i], a[i + 1]);
        vf r = unpack_lo1(a[i + 2], a[i + 3]), s = unpack_hi1(a[i + 2], a[i + 3]);
        a[i] = unpack_lo2(p, r);
        a[i + 1] = unpack_hi2(p, r);
        a[i + 2] = unpack_lo2(q, s);
        a[i + 3] = unpack_hi2(q, s);
    }
#if defined(__AVX512F__)
    DP_UNROLL
    for (int i = 0; i < 4; i++) {  // 4x4 of lanes
        vf e01 = lanes_even(a[i], a[i + 4]), o01 = lanes_odd(a[i], a[i + 4]);
        vf e23 = lanes_even(a[i + 8], a[i + 12]), o23 = lanes_odd(a[i + 8], a[i + 12]);
        a[i] = lanes_even(e01, e23);
        a[i + 8] = lanes_odd(e01, e23);
        a[i + 4] = lanes_even(o01, o23);
        a[i + 12] = lanes_odd(o01, o23);
    }
#elif defined(__AVX2__)
    DP_UNROLL
    for (int i = 0; i < 4; i++) {
        vf e = lanes_even(a[i], a[i + 4]), o = lanes_odd(a[i], a[i + 4]);
        a[i] = e;
        a[i + 4] = o;
    }
#endif
}

DP_INLINE float sum(vf x) {
    float s[W];
    store(s, x);
    for (int n = W / 2; n; n /= 2)
        for (int i = 0; i < n; i++) s[i] += s[i + n];
    return s[0];
}
DP_INLINE float highest(vf x) {
    float s[W];
    store(s, x);
    for (int n = W / 2; n; n /= 2)
        for (int i = 0; i < n; i++) s[i] = greater(s[i], s[i + n]);
    return s[0];
}

// --- functions -------------------------------------------------------------------------------------------------------
constexpr float exp_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer

// p * 2^n where x >= -87, 0 below that; `shifted` is n + exp_magic. Adding n to the exponent of p would be as short,
// but not every NaN would stay one.
DP_INLINE vf scale_exp(vf p, vf shifted, vf x) {
#if defined(__AVX512F__)
    __mmask16 alive = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    return (vf)_mm512_maskz_scalef_ps(alive, (__m512)p, (__m512)(shifted - exp_magic));
#else
    vf power = (vf)(((vi)shifted << 23) + 0x3f800000);  // the low bits of `shifted` are n
    vi dead = x < -87.0f;
    return (vf)((vi)(p * power) & ~dead);
#endif
}

// e^x for x <= 0, relative error about 1e-7; 0 below -87 (and for -inf), NaN for NaN. Range reduction by ln 2 in two
// parts and a degree-6 polynomial (Cephes expf).
DP_INLINE vf exp_neg(vf x) {
    vf shifted = x * 1.44269504f + exp_magic;
    vf n = shifted - exp_magic;
    vf r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + (r + 1.0f);
    return scale_exp(p, shifted, x);
}

// tanh x: odd polynomial near 0 (Cephes tanhf), (1 - e^-2|x|) / (1 + e^-2|x|) elsewhere.
DP_INLINE vf tanh(vf x) {
    vi sign = (vi)x & (int32_t)0x80000000;
    vf a = (vf)((vi)x & 0x7fffffff);
    vf e = exp_neg(a * -2.0f);
    vf far = (1.0f - e) / (1.0f + e);
    vf z = a * a;
    vf p = splat(-5.70498872745e-3f);
    p = p * z + 2.06390887954e-2f;
    p = p * z + -5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z + -3.33332819422e-1f;
    vf near = a + a * z * p;
    return (vf)((vi)(a < 0.625f ? near : far) | sign);
}

}  // namespace DUALPATH_ISA
