// Many query rows: compute bound, so a GEMM. For each run of 128 keys of a block, K is transposed and V widened into
// panels of 2W columns, and rows are multiplied MR at a time:
//
//     S [m, 128] = Q [m, dim] x K^T panels      weigh rows of S      acc [m, value_dim] += S x V panels
//
// Every element is one sequential sum over the inner dimension, whatever tile it falls into: tiling, threads and row
// order cannot change a bit of the result.
//
// A weight of zero hides a key from a row unless its V is not finite: there each row takes up V of the keys alone that
// it sees.
#pragma once

#include "visible.hpp"

namespace DUALPATH_ISA {

constexpr int key_run = 128, panel = 2 * W;
constexpr int tile_rows = W == 16 ? 14 : W == 8 ? 6 : 4;  // tile_rows x 2 accumulators fill the registers

// C [R, NV * W] = (or +=) A [R, inner] x B [inner, panel].
template <int R, int NV, bool ADD>
void multiply_tile(const float *a, int lda, const float *b, int inner, float *c, int ldc) {
    vf r[R][NV] = {};
    for (int k = 0; k < inner; k++) {
        vf y[NV];
        DP_UNROLL
        for (int n = 0; n < NV; n++) y[n] = load(b + (size_t)k * panel + n * W);
        DP_UNROLL
        for (int i = 0; i < R; i++) {
            vf x = splat(a[(size_t)i * lda + k]);
            DP_UNROLL
            for (int n = 0; n < NV; n++) r[i][n] += x * y[n];
        }
    }
    DP_UNROLL
    for (int i = 0; i < R; i++) {
        DP_UNROLL
        for (int n = 0; n < NV; n++) {
            float *to = c + (size_t)i * ldc + n * W;
            store(to, ADD ? load(to) + r[i][n] : r[i][n]);
        }
    }
}

using MultiplyTile = void (*)(const float *, int, const float *, int, float *, int);

template <int NV, bool ADD>
DP_INLINE MultiplyTile tile_of(int rows) {
    switch (rows) {
        case 1: return multiply_tile<1, NV, ADD>;
        case 2: return multiply_tile<2, NV, ADD>;
        case 3: return multiply_tile<3, NV, ADD>;
        case 4: return multiply_tile<4, NV, ADD>;
#if defined(__AVX2__) || defined(__AVX512F__)
        case 5: return multiply_tile<5, NV, ADD>;
        case 6: return multiply_tile<6, NV, ADD>;
#endif
#if defined(__AVX512F__)
        case 7: return multiply_tile<7, NV, ADD>;
        case 8: return multiply_tile<8, NV, ADD>;
        case 9: return multiply_tile<9, NV, ADD>;
        case 10: return multiply_tile<10, NV, ADD>;
        case 11: return multiply_tile<11, NV, ADD>;
        case 12: return multiply_tile<12, NV, ADD>;
        case 13: return multiply_tile<13, NV, ADD>;
        case 14: return multiply_tile<14, NV, ADD>;
#endif
    }
    return nullptr;
}

// C [rows, columns] = (or +=) A [rows, inner] x B; B is the first `inner` rows of panels of [height, panel]; columns is
// a multiple of W.
template <bool ADD>
void multiply(const float *a, int lda, int rows, const float *b, int height, int inner, float *c, int ldc,
              int columns) {
    for (int n = 0; n < columns; n += panel) {
        const bool full = columns - n >= panel;
        const float *bn = b + (size_t)n * height;
        for (int i = 0; i < rows; i += tile_rows) {
            int count = lesser(rows - i, tile_rows);
            (full ? tile_of<2, ADD>(count) : tile_of<1, ADD>(count))(a + (size_t)i * lda, lda, bn, inner,
                                                                     c + (size_t)i * ldc + n, ldc);
        }
    }
}

// K rows [keys, dim] of `stride` elements -> panels [dim, panel] of key columns, zeros past `keys` up to `padded`.
// Elements of one byte are multiplied by the scale of their column.
template <class T>
void pack_keys(const T *k, size_t stride, int keys, int padded, int dim, const float *scale, float *to) {
    for (int i = 0; i < padded; i += W) {
        float *column = to + (size_t)(i / panel) * panel * dim + i % panel;
        int d = 0;
        if (i + W <= keys) {
            for (; d + W <= dim; d += W) {
                vf a[W];
                DP_UNROLL
                for (int j = 0; j < W; j++) a[j] = load(k + (size_t)(i + j) * stride + d);
                if constexpr (scaled<T>) {
                    DP_UNROLL
                    for (int j = 0; j < W; j++) a[j] *= load(scale + d);
                }
                transpose(a);
                DP_UNROLL
                for (int j = 0; j < W; j++) store(column + (size_t)(d + j) * panel, a[j]);
            }
        }
        for (; d < dim; d++)
            for (int j = 0; j < W; j++)
                column[(size_t)d * panel + j] =
                    i + j < keys ? widen(k[(size_t)(i + j) * stride + d]) * (scaled<T> ? scale[d] : 1.0f) : 0;
    }
}

// V rows [keys, dim] -> panels [keys, panel], zeros past `dim` up to a multiple of W.
template <class T>
void pack_values(const T *v, size_t stride, int keys, int dim, const float *scale, float *to) {
    for (int d = 0; d < dim; d += W) {
        float *column = to + (size_t)(d / panel) * panel * keys + d % panel;
        for (int i = 0; i < keys; i++) {
            const T *row = v + (size_t)i * stride + d;
            if (d + W <= dim)
                store(column + (size_t)i * panel, scaled<T> ? load(row) * load(scale + d) : load(row));
            else
                for (int j = 0; j < W; j++)
                    column[(size_t)i * panel + j] =
                        d + j < dim ? widen(row[j]) * (scaled<T> ? scale[d + j] : 1.0f) : 0;
        }
    }
}

// Whether rows of panels [keys, panel] hold finite numbers alone.
DP_INLINE bool all_finite(const float *values, int keys, int columns) {
    vf probe[4] = {};  // 0 times what is not finite is NaN
    for (int d = 0; d < columns; d += W) {
        const float *at = values + (size_t)(d / panel) * panel * keys + d % panel;
        int i = 0;
        for (; i + 4 <= keys; i += 4, at += 4 * panel) {
            DP_UNROLL
            for (int j = 0; j < 4; j++) probe[j] += load(at + j * panel) * 0.0f;
        }
        for (; i < keys; i++, at += panel) probe[0] += load(at) * 0.0f;
    }
    const float found = sum(probe[0] + probe[1] + probe[2] + probe[3]);
    return found == found;
}

template <class T>
void prefill_item(const Call &c, const PrefillItem &item, Scratch scratch) {
    const int m = item.m_end - item.m_begin, heads = c.kv_heads * c.group;
    const int dim = c.head_dim, value_dim = (c.value_dim + W - 1) / W * W;
    float *q = scratch((size_t)m * (dim + key_run + value_dim) + (size_t)key_run * (dim + value_dim + panel) + 8 * W +
                       (scaled<T> ? dim + c.value_dim : 0));
    auto aligned = [](float *p) {
        return reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(p) + 63) & ~(uintptr_t)63);
    };
    float *s = aligned(q + (size_t)m * dim), *acc = s + (size_t)m * key_run;
    float *keys = aligned(acc + (size_t)m * value_dim), *values = aligned(keys + (size_t)key_run * dim);
    float *key_scale = values + (size_t)key_run * (value_dim + panel), *value_scale = key_scale + dim;

    auto row_of = [&](int i) { return item.row_begin + (item.m_begin + i) / c.group; };
    auto state_of = [&](int i) {
        return (size_t)row_of(i) * heads + (size_t)item.head * c.group + (item.m_begin + i) % c.group;
    };
    for (int i = 0; i < m; i++) {
        const float *from = c.q + state_of(i) * dim, *a = c.acc + state_of(i) * c.value_dim;
        for (int d = 0; d < dim; d++) q[(size_t)i * dim + d] = from[d] * c.scale;
        for (int d = 0; d < value_dim; d++) acc[(size_t)i * value_dim + d] = d < c.value_dim ? a[d] : 0;
    }
    const size_t head_elements = (size_t)c.block_tokens * dim * (c.latent ? 1 : 2);
    for (int b = item.block_begin; b < item.block_end; b++) {
        const Block &block = c.blocks[b];
        const T *k = reinterpret_cast<const T *>(block.data) + item.head * head_elements;
        const T *v = c.latent ? k : k + (size_t)c.block_tokens * dim;
        if constexpr (scaled<T>) {
            const int stream = item.head * (c.latent ? 1 : 2);
            read_scales<T>(c, block, stream, dim, key_scale);
            read_scales<T>(c, block, stream + !c.latent, c.value_dim, value_scale);
        }
        for (int first = 0; first < block.tokens; first += key_run) {
            const int n = lesser(block.tokens - first, key_run), padded = (n + W - 1) / W * W;
            auto seen = [&](int i) { return visible(c.row_position[row_of(i)], block.position + first, n, c.window); };
            int low = 0, high = m;  // rows that see something of this run
            for (; low < high; low++)
                if (Range r = seen(low); r.lo < r.hi) break;
            for (; high > low; high--)
                if (Range r = seen(high - 1); r.lo < r.hi) break;
            if (low == high) continue;
            pack_keys(k + (size_t)first * dim, dim, n, padded, dim, key_scale, keys);
            pack_values(v + (size_t)first * dim, dim, n, c.value_dim, value_scale, values);
            multiply<false>(q + (size_t)low * dim, dim, high - low, keys, dim, dim, s + (size_t)low * key_run, key_run,
                            padded);
            bool masked = false;
            for (int i = low; i < high; i++) {
                Range r = seen(i);
                masked |= r.hi - r.lo < n;
                float *si = s + (size_t)i * key_run, *ai = acc + (size_t)i * value_dim;
                if (r.hi <= r.lo) {
                    for (int j = 0; j < padded; j++) si[j] = 0;
                    continue;
                }
                float keep = weigh(si, padded, r, c.softcap, c.max[state_of(i)], c.exp_sum[state_of(i)]);
                if (keep != 1.0f)
                    for (int d = 0; d < value_dim; d += W) store(ai + d, load(ai + d) * keep);
            }
            if (!masked || all_finite(values, n, value_dim)) {
                multiply<true>(s + (size_t)low * key_run, key_run, high - low, values, n, n,
                               acc + (size_t)low * value_dim, value_dim, value_dim);
                continue;
            }
            for (int i = low; i < high; i++) {
                Range r = seen(i);
                multiply<true>(s + (size_t)i * key_run + r.lo, key_run, 1, values + (size_t)r.lo * panel, n,
                               r.hi - r.lo, acc + (size_t)i * value_dim, value_dim, value_dim);
            }
        }
    }
    for (int i = 0; i < m; i++)
        memcpy(c.acc + state_of(i) * c.value_dim, acc + (size_t)i * value_dim, c.value_dim * sizeof(float));
}

}  // namespace DUALPATH_ISA
