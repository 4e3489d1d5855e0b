// Many rows of bf16 on the matrix unit (AMX). A tile product multiplies 16 x 32 by 32 x 16 bf16 and adds to 16 x 16
// floats in 16 cycles, 16 times what fused multiply-adds do. Everything is transposed: rows of the query lie across,
//
//     S^T [keys, 32 rows] = K Q^T      weights, in place of S^T      acc^T [value_dim, 32 rows] += V^T weights^T
//
// so that K is used as it is stored, a query row's maximum and sum are kept in one lane, and two rows of weights make a
// row of the second operand, which holds pairs of consecutive inner indices side by side. V alone must be rearranged.
//
// K and V are bf16 already. Queries and weights are float32, so each is split into bf16 that add up to it:
//     queries    three, exactly (3 x 8 bits of mantissa), less those that are zero for all rows of a tile: one is left
//                where a model computes in bf16. Products with zeros change no bit. Only denormals flush to zero.
//     weights    two, which leaves 2^-18 of the largest possible weight: next to the 2^-9 to which V is stored
//
// One-byte elements are widened to bf16 run by run, which is exact. Their scales go where they are cheap: those of K
// into the query, which is split anew for each run, those of V into the products that are added to acc.
//
// What is not finite is beyond that: an infinity times three parts may be NaN, as is zero times a NaN behind a mask. It
// shows in the sums; then nothing is written, and the item is left to the vector units, which know such cases.
//
// Few rows gain nothing from it: they wait for memory, and rearranging V costs as much as widening it. Their
// scores alone, for which K is used as it lies, took a third longer too.
#pragma once

#if defined(__AMX_BF16__)

#include "prefill.hpp"

namespace DUALPATH_ISA {

constexpr int parts = 3, weight_parts = 2, tile_floats = 256;  // a tile is 16 rows of 64 bytes
constexpr int across = 32;                                     // rows of the query that are worked on at a time

// The intrinsics do not tell the compiler that they touch memory.
#define DP_FENCE() __asm__ volatile("" ::: "memory")
#define DP_TILE_LOAD(t, p, bytes) \
    do {                          \
        DP_FENCE();               \
        _tile_loadd(t, p, bytes); \
    } while (0)
#define DP_TILE_STORE(t, p, bytes) \
    do {                           \
        _tile_stored(t, p, bytes); \
        DP_FENCE();                \
    } while (0)

struct Tiles {  // all eight tiles are 16 x 64 bytes; without the release the kernel would save 8 KB at each switch
    Tiles() {
        alignas(64) unsigned char config[64] = {1};
        for (int t = 0; t < 8; t++) config[16 + 2 * t] = 64, config[48 + t] = 16;
        DP_FENCE();
        _tile_loadconfig(config);
    }
    ~Tiles() { _tile_release(); }
};

// x[0..32) as three rows of 32 bf16, `pitch` bf16 apart. Returns how many of them are not all zero, at least 1.
DP_INLINE int split(vf low, vf high, bf16 *to, size_t pitch) {
    int used = 1;
    DP_UNROLL
    for (int s = 0; s < parts; s++) {
        __m512i bits = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
        if (_mm512_test_epi16_mask(bits, _mm512_set1_epi16(0x7fff))) used = s + 1;
        _mm512_storeu_si512(to + s * pitch, bits);
        low -= (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(bits)), 16);
        high -= (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bits, 1)), 16);
    }
    return used;
}

// `count` rows of 32 bf16 as the columns of one tile; missing rows are zero.
DP_INLINE void pack_columns(const bf16 *rows, size_t stride, int count, float *tile) {
    vf a[16];
    DP_UNROLL
    for (int j = 0; j < 16; j++) a[j] = j < count ? load(reinterpret_cast<const float *>(rows + j * stride)) : vf{};
    transpose(a);
    DP_UNROLL
    for (int j = 0; j < 16; j++) store(tile + j * 16, a[j]);
}

// 32 keys x 32 dimensions of V as two tiles of 16 dimensions; keys from `count` on are zero.
DP_INLINE void pack_pairs(const bf16 *v, size_t stride, int count, float *first, float *second) {
    alignas(64) static const uint16_t low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i lo = _mm512_load_si512(low), hi = _mm512_add_epi16(lo, _mm512_set1_epi16(16));
    auto put = [&](int i, __m512i a, __m512i b) {
        _mm512_store_si512(first + i * 16, _mm512_permutex2var_epi16(a, lo, b));
        _mm512_store_si512(second + i * 16, _mm512_permutex2var_epi16(a, hi, b));
    };
    if (count >= 32) {
        DP_UNROLL
        for (int i = 0; i < 16; i++, v += 2 * stride) put(i, _mm512_loadu_si512(v), _mm512_loadu_si512(v + stride));
        return;
    }
    auto row = [&](int i) { return i < count ? _mm512_loadu_si512(v + i * stride) : _mm512_setzero_si512(); };
    for (int i = 0; i < 16; i++) put(i, row(2 * i), row(2 * i + 1));
}

// 32 keys x 32 dimensions of V as two tiles, rows of which are dimensions.
DP_INLINE void pack_turned(const bf16 *v, size_t stride, int count, float *first, float *second) {
    pack_pairs(v, stride, count, first, second);
    for (int t = 0; t < 2; t++) {
        float *tile = t ? second : first;
        vf a[16];
        DP_UNROLL
        for (int j = 0; j < 16; j++) a[j] = load(tile + j * 16);
        transpose(a);
        DP_UNROLL
        for (int j = 0; j < 16; j++) store(tile + j * 16, a[j]);
    }
}

// Rows of one-byte elements as bf16.
template <class T>
void widen_rows(const T *from, size_t stride, int rows, int dim, bf16 *to) {
    for (int i = 0; i < rows; i++, from += stride, to += dim)
        for (int d = 0; d < dim; d += 32) {
            const vf low = load(from + d), high = load(from + d + 16);
            _mm512_storeu_si512(to + d, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
        }
}

// Square (tiles 0..3) += A [32, 32] x B [32, 32] for `count` parts of B: `next` floats from one tile of columns to the
// other, `part` from part to part, `row` bytes from row to row.
DP_INLINE void multiply_square(const void *a, const void *below, size_t bytes, const float *b, size_t next, size_t part,
                               size_t row, int count) {
    DP_TILE_LOAD(4, a, bytes);
    DP_TILE_LOAD(5, below, bytes);
    for (int s = 0; s < count; s++, b += part) {
        DP_TILE_LOAD(6, b, row);
        DP_TILE_LOAD(7, b + next, row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

DP_INLINE void clear_square() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

DP_INLINE void store_square(float *to) {
    DP_TILE_STORE(0, to, across * 4);
    DP_TILE_STORE(1, to + 16, across * 4);
    DP_TILE_STORE(2, to + 16 * across, across * 4);
    DP_TILE_STORE(3, to + 16 * across + 16, across * 4);
}

// e^x for x <= 0 (or a little more), relative error about 1e-7; 0 below -87 (and for -inf), NaN for NaN.
DP_INLINE vf exp_shifted(vf x) {
    const vf log2e = splat(1.44269504f);
    vf shifted = x * log2e + exp_magic;
    vf n = shifted - exp_magic;
    vf f = x * log2e - n;
    vf p = splat(1.3264727065e-3f);  // 2^f on [-1/2, 1/2], minimax
    p = p * f + 9.6715126489e-3f;
    p = p * f + 5.5507337437e-2f;
    p = p * f + 2.4022242085e-1f;
    p = p * f + 6.9314697760e-1f;
    p = p * f + 1.0f;
    return scale_exp(p, shifted, x);
}

// The bf16 nearest to each of a and b, as float32; packs them into pairs (a, b).
DP_INLINE __m512i round_pairs(vf &a, vf &b) {
    const __m512i half = _mm512_set1_epi32(0x8000), top = _mm512_set1_epi32((int)0xffff0000);
    __m512i x = _mm512_add_epi32((__m512i)a, half), y = _mm512_and_si512(_mm512_add_epi32((__m512i)b, half), top);
    a = (vf)_mm512_and_si512(x, top);
    b = (vf)y;
    return _mm512_or_si512(_mm512_srli_epi32(x, 16), y);
}

// 32 rows of the query against keys [from, to) of a run: first scores, then weights, then their product with V.
struct Stage {
    int from, to, n;        // [from, to) in whole 32s; keys from n on do not exist
    int64_t start;          // position of the run
    const bf16 *k, *tail;   // the run's K; its last 32 rows, where that many do not exist
    const float *values;    // V^T in tiles [value_dim / 16][key_run / 32]
    const float *scale;     // of V's columns, where they have one
    float *s, *keep;        // [key_run, 32], [32]
    const float *q;         // [part][16 columns][dim / 32] tiles
    float *max, *exp_sum, *acc;
    int parts, first_row;
};

// The products of one stage with V and the scores of another, in small steps: the matrix unit works on them while the
// vector units work on the weights of the stage between.
template <class T>
struct Products {
    const Stage *values, *scores;  // or null
    int dim, value_dim;
    float *sums;
    int i = 0, d = 0;

    Products(const Stage *v, const Stage *s, int dim, int value_dim, float *sums)
        : values(v), scores(s), dim(dim), value_dim(value_dim), sums(sums) {
        i = v ? v->from : s ? s->from : 0;
    }
    int count() const {
        return (values ? value_dim / 32 * (values->to - values->from) / 32 : 0) +
               (scores ? dim / 32 * (scores->to - scores->from) / 32 : 0);
    }
    DP_INLINE void step() {
        if (values)
            value_step();
        else
            score_step();
    }
    DP_INLINE void score_step() {
        const Stage &t = *scores;
        const bf16 *k = i + 32 <= t.n ? t.k + (size_t)i * dim : t.tail;
        const size_t column = (size_t)dim / 32 * tile_floats;
        if (d == 0) clear_square();
        multiply_square(k + d, k + 16 * dim + d, dim * sizeof(bf16), t.q + d / 32 * tile_floats, column, 2 * column, 64,
                        t.parts);
        if ((d += 32) < dim) return;
        store_square(t.s + (size_t)i * across);
        d = 0;
        i += 32;
    }
    DP_INLINE void value_step() {
        const Stage &t = *values;
        const float *v = t.values + (size_t)(d / 16 * (key_run / 32) + i / 32) * tile_floats;
        if (i == t.from) clear_square();
        multiply_square(v, v + key_run / 32 * tile_floats, 64, t.s + (size_t)i * across, 16, 32, 256, weight_parts);
        if ((i += 32) < t.to) return;
        store_square(sums);
        const vf keep0 = load(t.keep), keep1 = load(t.keep + W);
        float *to = t.acc + (size_t)d * across;
        for (int r = 0; r < 32 * across; r += across) {
            vf sum0 = load(sums + r), sum1 = load(sums + r + W);
            if constexpr (scaled<T>) {
                const vf scale = splat(t.scale[d + r / across]);
                sum0 *= scale, sum1 *= scale;
            }
            store(to + r, load(to + r) * keep0 + sum0);
            store(to + r + W, load(to + r + W) * keep1 + sum1);
        }
        i = t.from;
        if ((d += 32) < value_dim) return;
        d = 0;
        values = nullptr;
        if (scores) i = scores->from;
    }
};

// Scores become weights: of 32 rows, in lanes, two keys at a time. Two rows of scores give way to two rows of pairs of
// bf16: the first parts of rows 0..16 and 16..32, then the second parts.
template <bool EDGE, class T>
void weigh_columns(const Stage &t, vf scale, const vi *lo, const vi *hi, Products<T> &products) {
    const float inf = __builtin_inff();
    const int keys = t.to - t.from, count = products.count();
    float *s = t.s + (size_t)t.from * across;
    vf shift[2], total[2];
    DP_UNROLL
    for (int l = 0; l < 2; l++) {
        vf top = splat(-inf), second = splat(-inf);
        for (int i = 0; i < keys; i += 2) {
            vf a = load(s + (size_t)i * across + l * W), b = load(s + (size_t)(i + 1) * across + l * W);
            if (EDGE) {
                vi at = vi{} + i;
                a = (at >= lo[l]) & (at < hi[l]) ? a : splat(-inf);
                b = (at + 1 >= lo[l]) & (at + 1 < hi[l]) ? b : splat(-inf);
                store(s + (size_t)i * across + l * W, a);
                store(s + (size_t)(i + 1) * across + l * W, b);
            }
            top = vmax(top, a);
            second = vmax(second, b);
        }
        top = vmax(top, second) * scale;
        vf before = load(t.max + l * W);
        shift[l] = vmax(top, before);
        store(t.max + l * W, shift[l]);
        shift[l] = shift[l] == -inf ? vf{} : shift[l];  // no key yet: -inf less -inf would be NaN
        vf keep = exp_shifted(before - shift[l]);
        store(t.keep + l * W, keep);
        total[l] = load(t.exp_sum + l * W) * keep;
    }
    vf even[2] = {}, odd[2] = {};
    int due = 0;
    for (int i = 0; i < keys; i += 2, s += 2 * across) {
        for (due += 2 * count; due >= keys; due -= keys) products.step();
        vf a0 = exp_shifted(load(s) * scale - shift[0]), a1 = exp_shifted(load(s + W) * scale - shift[1]);
        const float *next = s + across;
        vf b0 = exp_shifted(load(next) * scale - shift[0]), b1 = exp_shifted(load(next + W) * scale - shift[1]);
        even[0] += a0;
        even[1] += a1;
        odd[0] += b0;
        odd[1] += b1;
        vf u0 = a0, u1 = a1, v0 = b0, v1 = b1;
        _mm512_store_si512(s, round_pairs(u0, v0));
        _mm512_store_si512(s + 16, round_pairs(u1, v1));
        a0 -= u0, a1 -= u1, b0 -= v0, b1 -= v1;
        _mm512_store_si512(s + 32, round_pairs(a0, b0));
        _mm512_store_si512(s + 48, round_pairs(a1, b1));
    }
    DP_UNROLL
    for (int l = 0; l < 2; l++) store(t.exp_sum + l * W, total[l] + (even[l] + odd[l]));
}

// Whether sums of the first m rows, exp_sum [.., 32] and acc [.., value_dim, 32], are finite.
DP_INLINE bool finite_rows(const float *exp_sum, const float *acc, int value_dim, int m) {
    for (int i = 0; i < m; i += W) {
        const float *column = acc + (size_t)(i / across) * value_dim * across + i % across;
        vf probe = load(exp_sum + i) * 0.0f;  // NaN for what is not finite
        for (int d = 0; d < value_dim; d++) probe += load(column + (size_t)d * across) * 0.0f;
        const __mmask16 real = (__mmask16)(m - i >= W ? 0xffff : (1 << (m - i)) - 1);
        if (_mm512_mask_cmp_ps_mask(real, (__m512)probe, (__m512)probe, _CMP_UNORD_Q)) return false;
    }
    return true;
}

// Returns whether it could; the state is as it was where not.
template <class T>
bool matrix_prefill_item(const Call &c, const PrefillItem &item, Scratch scratch) {
    constexpr int ring = 3;  // stages under way, and so runs whose K and V must be there
    const int m = item.m_end - item.m_begin, heads = c.kv_heads * c.group, blocks = (m + across - 1) / across;
    const int dim = c.head_dim, value_dim = c.value_dim, steps = dim / 32;
    const size_t q_part = (size_t)across * dim / 2, q_block = parts * q_part;
    const size_t run_floats = (size_t)key_run * value_dim / 2;
    // What one-byte elements need beside: wide K (of a ring of runs) and V, queries of a ring of stages, scales.
    const size_t wide_k_floats = (size_t)key_run * dim / 2;
    const size_t beside = scaled<T> ? ring * (wide_k_floats + q_block + value_dim) + run_floats + dim : 0;
    float *q = scratch(blocks * (q_block + (size_t)across * (value_dim + 2)) + across * across + q_block +
                       ring * (run_floats + (size_t)key_run * across + across + q_part) + (size_t)blocks * 6 + beside);
    float *acc = q + blocks * q_block, *max = acc + (size_t)blocks * across * value_dim;
    float *exp_sum = max + blocks * across;
    float *values = exp_sum + blocks * across, *s = values + ring * run_floats;
    float *sums = s + (size_t)ring * key_run * across, *keep = sums + across * across;
    bf16 *tail = reinterpret_cast<bf16 *>(keep + ring * across), *rows = tail + (size_t)ring * across * dim;
    struct Span {
        int64_t low, high;  // positions
        int parts;
    } *spans = reinterpret_cast<Span *>(rows + (size_t)parts * across * dim);
    float *wide_k = reinterpret_cast<float *>(spans + blocks), *wide_v = wide_k + ring * wide_k_floats;
    float *scaled_q = wide_v + run_floats, *key_scale = scaled_q + ring * q_block, *value_scale = key_scale + dim;

    auto row_of = [&](int i) { return item.row_begin + (item.m_begin + i) / c.group; };
    auto state_of = [&](int i) {
        return (size_t)row_of(i) * heads + (size_t)item.head * c.group + (item.m_begin + i) % c.group;
    };
    const vf sign = splat(c.scale < 0 ? -1.0f : 1.0f);
    auto pack_query = [&](int j, float *to) {  // 32 rows, split, as columns of tiles; returns the number of parts
        int used = 1;
        for (int i = 0; i < across; i++) {
            const int at = j * across + i;
            const float *from = at < m ? c.q + state_of(at) * dim : nullptr;
            for (int d = 0; d < dim; d += 32) {
                vf low = from ? load(from + d) * sign : vf{}, high = from ? load(from + d + 16) * sign : vf{};
                if constexpr (scaled<T>) low *= load(key_scale + d), high *= load(key_scale + d + 16);
                used = greater(used, split(low, high, rows + (size_t)i * dim + d, (size_t)across * dim));
            }
        }
        for (int p = 0; p < used; p++)
            for (int l = 0; l < 2; l++)
                for (int d = 0; d < steps; d++)
                    pack_columns(rows + (size_t)(p * across + l * 16) * dim + d * 32, dim, 16,
                                 to + p * q_part + (size_t)(l * steps + d) * tile_floats);
        return used;
    };
    for (int j = 0; j < blocks; j++) {
        Span &span = spans[j] = {INT64_MAX, 0, 1};
        float *aj = acc + (size_t)j * across * value_dim;
        if constexpr (!scaled<T>) span.parts = pack_query(j, q + j * q_block);
        for (int i = 0; i < across; i++) {
            const int at = j * across + i;
            const bool real = at < m;
            max[at] = real ? c.max[state_of(at)] : 0;
            exp_sum[at] = real ? c.exp_sum[state_of(at)] : 0;
            if (real) {
                span.low = lesser(span.low, c.row_position[row_of(at)]);
                span.high = greater(span.high, c.row_position[row_of(at)]);
            }
        }
        for (int l = 0; l < 2; l++)
            for (int d = 0; d < value_dim; d += 16) {
                vf a[16];
                for (int i = 0; i < 16; i++) {
                    const int at = j * across + l * 16 + i;
                    a[i] = at < m ? load(c.acc + state_of(at) * value_dim + d) : vf{};
                }
                transpose(a);
                for (int i = 0; i < 16; i++) store(aj + (size_t)(d + i) * across + l * 16, a[i]);
            }
    }
    const size_t head_elements = (size_t)c.block_tokens * dim * (c.latent ? 1 : 2);
    const vf scale = splat(c.softcap > 0 ? 1.0f : c.scale < 0 ? -c.scale : c.scale);
    Tiles tiles;
    Stage stages[ring];
    int stage = 0, run = 0;  // how many so far
    // Weights of the last stage but the newest, while products go on with its neighbours.
    auto advance = [&](const Stage *before, const Stage *now, const Stage *after) {
        Products<T> products(before, after, dim, value_dim, sums);
        if (!now) {
            for (int n = products.count(); n > 0; n--) products.step();
            return;
        }
        const Stage &t = *now;
        if (c.softcap > 0)
            for (float *x = t.s + t.from * across; x < t.s + t.to * across; x += W)
                store(x, tanh(load(x) * __builtin_fabsf(c.scale) * (1.0f / c.softcap)) * c.softcap);
        const Span span = spans[t.first_row / across];
        if (visible(span.low, t.start, t.n, 0).hi >= t.to && visible(span.high, t.start, t.n, c.window).lo <= t.from) {
            weigh_columns<false>(t, scale, nullptr, nullptr, products);
            return;
        }
        vi lo[2], hi[2];
        for (int i = 0; i < across; i++) {
            const int at = t.first_row + i;
            const Range r = at < m ? visible(c.row_position[row_of(at)], t.start, t.n, c.window) : Range{0, t.n};
            lo[i / W][i % W] = r.lo - t.from;
            hi[i / W][i % W] = r.hi - t.from;
        }
        weigh_columns<true>(t, scale, lo, hi, products);
    };
    for (int b = item.block_begin; b < item.block_end; b++) {
        const Block &block = c.blocks[b];
        const int stream = item.head * (c.latent ? 1 : 2);
        if constexpr (scaled<T>) read_scales<T>(c, block, stream, dim, key_scale);
        for (int first = 0; first < block.tokens; first += key_run) {
            const T *stored = reinterpret_cast<const T *>(block.data) + item.head * head_elements + (size_t)first * dim;
            const T *stored_v = c.latent ? stored : stored + (size_t)c.block_tokens * dim;
            const bf16 *k = reinterpret_cast<const bf16 *>(stored), *v = reinterpret_cast<const bf16 *>(stored_v);
            size_t v_stride = dim;
            float *scale_v = nullptr;
            const int n = lesser(block.tokens - first, key_run);
            const int64_t start = block.position + first;
            float *packed = nullptr;
            bf16 *end = tail + (size_t)(run % ring) * across * dim;
            for (int j = 0; j < blocks; j++) {
                const Span span = spans[j];
                const int from = visible(span.low, start, n, c.window).lo / 32 * 32;
                const int to = (visible(span.high, start, n, 0).hi + 31) / 32 * 32;
                if (from >= to) continue;
                if (!packed) {
                    if constexpr (scaled<T>) {
                        bf16 *wide = reinterpret_cast<bf16 *>(wide_k + run % ring * wide_k_floats);
                        widen_rows(stored, dim, n, dim, wide);
                        widen_rows(stored_v, dim, n, value_dim, reinterpret_cast<bf16 *>(wide_v));
                        k = wide, v = reinterpret_cast<bf16 *>(wide_v), v_stride = value_dim;
                        scale_v = value_scale + run % ring * value_dim;
                        read_scales<T>(c, block, stream + !c.latent, value_dim, scale_v);
                    }
                    packed = values + run++ % ring * run_floats;
                    for (int d = 0; d < value_dim; d += 32)
                        for (int i = 0; i < n; i += 32) {
                            float *tile = packed + (size_t)(d / 16 * (key_run / 32) + i / 32) * tile_floats;
                            pack_turned(v + i * v_stride + d, v_stride, n - i, tile, tile + key_run / 32 * tile_floats);
                        }
                    if (n % 32) {
                        memcpy(end, k + (size_t)(n / 32 * 32) * dim, (size_t)(n % 32) * dim * sizeof(bf16));
                        memset(end + n % 32 * dim, 0, (size_t)(32 - n % 32) * dim * sizeof(bf16));
                    }
                }
                const int at = stage % ring;
                const float *q_stage = q + j * q_block;
                int q_parts = span.parts;
                if constexpr (scaled<T>) {
                    q_parts = pack_query(j, scaled_q + at * q_block);
                    q_stage = scaled_q + at * q_block;
                }
                stages[at] = {from, to, n, start, k, end, packed, scale_v, s + (size_t)at * key_run * across,
                              keep + at * across, q_stage, max + j * across, exp_sum + j * across,
                              acc + (size_t)j * across * value_dim, q_parts, j * across};
                advance(stage > 1 ? &stages[(stage + 1) % ring] : nullptr,
                        stage > 0 ? &stages[(stage + 2) % ring] : nullptr, &stages[at]);
                stage++;
            }
        }
    }
    if (stage > 0) {
        const Stage *last = &stages[(stage + 2) % ring];
        advance(stage > 1 ? &stages[(stage + 1) % ring] : nullptr, last, nullptr);
        advance(last, nullptr, nullptr);
    }
    if (!finite_rows(exp_sum, acc, value_dim, m)) return false;
    for (int i = 0; i < m; i++) {
        c.max[state_of(i)] = max[i];
        c.exp_sum[state_of(i)] = exp_sum[i];
    }
    for (int i = 0; i < m; i += 16)
        for (int d = 0; d < value_dim; d += 16) {
            vf a[16];
            for (int r = 0; r < 16; r++)
                a[r] = load(acc + ((size_t)(i / across) * value_dim + d + r) * across + i % across);
            transpose(a);
            for (int r = 0; r < lesser(16, m - i); r++) store(c.acc + state_of(i + r) * value_dim + d, a[r]);
        }
    return true;
}

}  // namespace DUALPATH_ISA

#endif
