// Many rows of bf16 on the matrix unit (AMX). A tile product multiplies 16 x 32 by 32 x 16 bf16 and adds to 16 x 16
// floats in 16 cycles, 16 times what fused multiply-adds do. K and V are bf16 already. Queries and weights are float32:
// each is split into three bf16 whose sum it is exactly (3 x 8 bits of mantissa), so nothing is lost; only denormals
// flush to zero.
//
// The second operand of a product holds pairs of consecutive inner indices side by side:
//     K^T  rows are pairs of dimensions, columns keys:    a 16x16 transpose of 32-bit pairs
//     V    rows are pairs of keys, columns dimensions:    two rows interleaved
//
// Few rows gain nothing from it: they wait for memory, and rearranging V costs as much as widening it.
#pragma once

#if defined(__AMX_BF16__)

#include "prefill.hpp"

namespace DUALPATH_ISA {

constexpr int parts = 3, tile_floats = 256;  // a tile is 16 rows of 64 bytes

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

// x[0..32) as three rows of 32 bf16, `pitch` bf16 apart.
DP_INLINE void split(vf low, vf high, bf16 *to, size_t pitch) {
    DP_UNROLL
    for (int s = 0; s < parts; s++) {
        __m512i bits = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
        _mm512_storeu_si512(to + s * pitch, bits);
        low -= (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(bits)), 16);
        high -= (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bits, 1)), 16);
    }
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

// C [32, 32] (tiles 0..3) = sum over parts and inner of A [32, inner] x B. A: `part` bf16 from part to part; B: two
// columns of tiles, `next` floats apart.
DP_INLINE void multiply_square(const bf16 *a, size_t lda, size_t part, const float *b, size_t next, int inner) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int c = 0; c < inner / 32; c++) {
        DP_TILE_LOAD(6, b + (size_t)c * tile_floats, 64);
        DP_TILE_LOAD(7, b + next + (size_t)c * tile_floats, 64);
        for (int s = 0; s < parts; s++) {
            DP_TILE_LOAD(4, a + s * part + c * 32, lda * 2);
            DP_TILE_LOAD(5, a + s * part + 16 * lda + c * 32, lda * 2);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

void matrix_prefill_item(const Call &c, const PrefillItem &item, Scratch scratch) {
    const int m = item.m_end - item.m_begin, heads = c.kv_heads * c.group, tall = (m + 31) / 32 * 32;
    const int dim = c.head_dim, value_dim = c.value_dim;
    const size_t q_part = (size_t)tall * dim, w_part = (size_t)tall * key_run;
    float *s = scratch((size_t)tall * (key_run + value_dim) + (q_part + w_part) * parts / 2 +
                       (size_t)key_run * (dim + value_dim) / 2 + 4 * tile_floats);
    float *acc = s + (size_t)tall * key_run, *keys = acc + (size_t)tall * value_dim,
          *values = keys + (size_t)key_run * dim / 2;
    float *sums = values + (size_t)key_run * value_dim / 2;
    bf16 *q = reinterpret_cast<bf16 *>(sums + 4 * tile_floats), *weights = q + parts * q_part;

    auto row_of = [&](int i) { return item.row_begin + (item.m_begin + i) / c.group; };
    auto state_of = [&](int i) {
        return (size_t)row_of(i) * heads + (size_t)item.head * c.group + (item.m_begin + i) % c.group;
    };
    const vf scale = splat(c.scale);
    for (int i = 0; i < tall; i++) {
        for (int d = 0; d < dim; d += 32) {
            const float *from = i < m ? c.q + state_of(i) * dim + d : nullptr;
            split(from ? load(from) * scale : vf{}, from ? load(from + 16) * scale : vf{}, q + (size_t)i * dim + d,
                  q_part);
        }
        for (int d = 0; d < value_dim; d += W)
            store(acc + (size_t)i * value_dim + d, i < m ? load(c.acc + state_of(i) * value_dim + d) : vf{});
    }
    Tiles tiles;
    const size_t head_elements = (size_t)c.block_tokens * dim * (c.latent ? 1 : 2);
    for (int b = item.block_begin; b < item.block_end; b++) {
        const Block &block = c.blocks[b];
        const bf16 *k = reinterpret_cast<const bf16 *>(block.data) + item.head * head_elements;
        const bf16 *v = c.latent ? k : k + (size_t)c.block_tokens * dim;
        for (int first = 0; first < block.tokens; first += key_run) {
            const int n = lesser(block.tokens - first, key_run), padded = (n + 31) / 32 * 32;
            auto seen = [&](int i) { return visible(c.row_position[row_of(i)], block.position + first, n, c.window); };
            int low = 0, high = m;
            for (; low < high; low++)
                if (Range r = seen(low); r.lo < r.hi) break;
            for (; high > low; high--)
                if (Range r = seen(high - 1); r.lo < r.hi) break;
            if (low == high) continue;
            const size_t k_column = (size_t)dim / 32 * tile_floats, v_column = (size_t)padded / 32 * tile_floats;
            for (int i = 0; i < padded; i += 16)
                for (int d = 0; d < dim; d += 32)
                    pack_columns(k + (size_t)(first + i) * dim + d, dim, n - i,
                                 keys + i / 16 * k_column + d / 32 * tile_floats);
            for (int d = 0; d < value_dim; d += 32)
                for (int i = 0; i < padded; i += 32)
                    pack_pairs(v + (size_t)(first + i) * dim + d, dim, n - i,
                               values + d / 16 * v_column + i / 32 * tile_floats,
                               values + (d / 16 + 1) * v_column + i / 32 * tile_floats);
            const int from = low / 32 * 32;
            for (int i = from; i < high; i += 32)
                for (int j = 0; j < padded; j += 32) {
                    multiply_square(q + (size_t)i * dim, dim, q_part, keys + j / 16 * k_column, k_column, dim);
                    float *to = s + (size_t)i * key_run + j;
                    DP_TILE_STORE(0, to, key_run * 4);
                    DP_TILE_STORE(1, to + 16, key_run * 4);
                    DP_TILE_STORE(2, to + 16 * key_run, key_run * 4);
                    DP_TILE_STORE(3, to + 16 * key_run + 16, key_run * 4);
                }
            for (int i = from; i < lesser((high + 31) / 32 * 32, tall); i++) {
                Range r = i < m ? seen(i) : Range{0, 0};
                float *si = s + (size_t)i * key_run, *ai = acc + (size_t)i * value_dim;
                if (r.hi <= r.lo) {
                    for (int j = 0; j < padded; j += W) store(si + j, vf{});
                } else {
                    float keep = weigh(si, padded, r, c.softcap, c.max[state_of(i)], c.exp_sum[state_of(i)]);
                    if (keep != 1.0f)
                        for (int d = 0; d < value_dim; d += W) store(ai + d, load(ai + d) * keep);
                }
                for (int j = 0; j < padded; j += 32)
                    split(load(si + j), load(si + j + 16), weights + (size_t)i * key_run + j, w_part);
            }
            for (int i = from; i < high; i += 32)
                for (int d = 0; d < value_dim; d += 32) {
                    multiply_square(weights + (size_t)i * key_run, key_run, w_part, values + d / 16 * v_column,
                                    v_column, padded);
                    DP_TILE_STORE(0, sums, 128);
                    DP_TILE_STORE(1, sums + 16, 128);
                    DP_TILE_STORE(2, sums + 512, 128);
                    DP_TILE_STORE(3, sums + 528, 128);
                    for (int r = 0; r < 32; r++) {
                        float *to = acc + (size_t)(i + r) * value_dim + d;
                        store(to, load(to) + load(sums + r * 32));
                        store(to + 16, load(to + 16) + load(sums + r * 32 + 16));
                    }
                }
        }
    }
    for (int i = 0; i < m; i++)
        memcpy(c.acc + state_of(i) * value_dim, acc + (size_t)i * value_dim, value_dim * sizeof(float));
}

}  // namespace DUALPATH_ISA

#endif
