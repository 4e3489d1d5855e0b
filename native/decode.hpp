// Few query rows against one block: memory bound, so K and V are read once, in order, straight from the block.
//
//     for each run of at most 256 keys:   S = Q K^T   (tiles of H heads x N keys, one transposed sum per W dots)
//                                         weigh rows of S
//                                         acc += S V  (runs of 64 V rows stay in L1 while columns are walked)
//
// Where rows see different keys of a run, each takes up V of those alone: zero times a NaN that it must not see is NaN.
//
// bf16 pairs are widened two at a time, by a shift (even elements) and a mask (odd ones), so q is stored with even
// and odd elements apart, and acc is put back in order when it leaves.
#pragma once

#include "visible.hpp"

namespace DUALPATH_ISA {

constexpr int decode_run = 256, value_run = 64;
constexpr size_t prefetch_bytes = 16384;  // how far ahead: a few microseconds of one thread's share of the bandwidth

// Asks for memory at the rate at which it is used: a tile of rows is walked several times (by groups of heads, by
// columns), so every step of every walk asks for its share of the bytes that lie ahead of the tile. They go to the
// second-level cache: the first has too few buffers for lines under way. Past the end of a stream lies, as a rule, what
// is read next.
struct Prefetch {
    const char *next;
    size_t step;               // bytes per row of a walk, in 1/256
    size_t due = 0, done = 0;  // likewise in 1/256

    DP_INLINE void advance(int rows) {
        due += rows * step;
        for (; done < due; done += 64 * 256) {
            __builtin_prefetch(next, 0, 2);
            next += 64;
        }
    }
};

// Vector i of a stored row. For bf16, vectors 2j and 2j+1 are the even and the odd elements of 2W consecutive ones.
DP_INLINE vf stream(const float *row, int i) { return load(row + i * W); }
DP_INLINE vf stream(const fp16 *row, int i) { return load(row + i * W); }
DP_INLINE vf stream(const int8 *row, int i) { return load(row + i * W); }
DP_INLINE vf stream(const fp8 *row, int i) { return load(row + i * W); }
DP_INLINE vf stream(const bf16 *row, int i) {
    vi raw = *reinterpret_cast<const viu *>(row + (i / 2) * 2 * W);
    return (vf)(i % 2 ? raw & (int32_t)0xffff0000 : raw << 16);
}

template <class T>
struct Pairs {
    static constexpr int n = 1;
};  // vectors that must be streamed together
template <>
struct Pairs<bf16> {
    static constexpr int n = 2;
};

// Scores of H rows of q against N keys; out[h * pitch + k].
template <class T, int H, int N>
DP_INLINE void dots(const float *q, int dim, const T *k, float *out, int pitch, Prefetch &ahead) {
    constexpr int P = Pairs<T>::n, total = H * N, groups = (total + W - 1) / W;
    vf a[groups * W] = {};
    ahead.advance(N);
    for (int i = 0; i < dim / W; i += P) {
        DP_UNROLL
        for (int e = 0; e < P; e++) {
            vf x[H];
            DP_UNROLL
            for (int h = 0; h < H; h++) x[h] = load(q + h * dim + (i + e) * W);
            DP_UNROLL
            for (int n = 0; n < N; n++) {
                vf y = P == 2 ? stream(k + n * (size_t)dim + i * W, e) : stream(k + n * (size_t)dim, i);
                DP_UNROLL
                for (int h = 0; h < H; h++) a[h * N + n] += y * x[h];
            }
        }
    }
    float t[groups * W];
    DP_UNROLL
    for (int g = 0; g < groups; g++) store(t + g * W, reduce(a + g * W));
    DP_UNROLL
    for (int h = 0; h < H; h++) memcpy(out + h * pitch, t + h * N, N * sizeof(float));
}

// acc[h] += sum over `rows` of weight[h][row] * V[row], for V vectors [0, C) of a row.
template <class T, int H, int C>
DP_INLINE void weighted(const float *weight, int pitch, const T *v, size_t stride, int rows, float *acc, int dim,
                        Prefetch &ahead) {
    constexpr int P = Pairs<T>::n;
    constexpr int burst = sizeof(T) == 4 ? 4 : 1;  // rows to ask for at a time: measured
    vf r[H][C];
    DP_UNROLL
    for (int h = 0; h < H; h++) {
        DP_UNROLL
        for (int c = 0; c < C; c++) r[h][c] = load(acc + h * dim + c * W);
    }
    for (int i = 0; i < rows; i++, v += stride) {
        if (i % burst == 0) ahead.advance(burst);
        vf x[C];
        DP_UNROLL
        for (int c = 0; c < C; c++) x[c] = P == 2 ? stream(v + (c / 2) * 2 * W, c % 2) : stream(v, c);
        DP_UNROLL
        for (int h = 0; h < H; h++) {
            vf w = splat(weight[h * pitch + i]);
            DP_UNROLL
            for (int c = 0; c < C; c++) r[h][c] += w * x[c];
        }
    }
    DP_UNROLL
    for (int h = 0; h < H; h++) {
        DP_UNROLL
        for (int c = 0; c < C; c++) store(acc + h * dim + c * W, r[h][c]);
    }
}

// Keys whose dot products with H rows of q are summed at a time: as many as registers allow.
constexpr int keys_at_once(int h) {
    if (W == 16) return h == 1 ? 16 : h == 4 ? 4 : 8;
    return h == 1 ? 8 : h == 4 ? 2 : 4;
}

template <class T, int H>
void score_run(const float *q, int dim, const T *k, int keys, float *s, Prefetch &ahead) {
    constexpr int N = keys_at_once(H);
    int i = 0;
    for (; i + N <= keys; i += N) dots<T, H, N>(q, dim, k + i * (size_t)dim, s + i, decode_run, ahead);
    for (; i < keys; i++) dots<T, H, 1>(q, dim, k + i * (size_t)dim, s + i, decode_run, ahead);
}

// Vectors of a V row that fit into registers beside H rows of weights.
constexpr int columns(int h) { return W == 16 ? (h == 4 ? 4 : 8) : h == 1 ? 8 : h == 2 ? 4 : 2; }

// How often a row is walked for all columns, as value_pass does it.
DP_INLINE int walks_of(int h, int vectors) {
    int c = columns(h), left = vectors % c;
    return vectors / c + (c > 4 && left >= 4) + (c > 2 && left % 4 >= 2) + left % 2;
}

template <class T, int H>
void value_pass(const float *s, const T *v, size_t stride, int rows, float *acc, int dim, Prefetch &ahead) {
    constexpr int C = columns(H);
    int c = 0, n = dim / W;
    for (; c + C <= n; c += C) weighted<T, H, C>(s, decode_run, v + c * W, stride, rows, acc + c * W, dim, ahead);
    if constexpr (C > 4)
        if (c + 4 <= n) weighted<T, H, 4>(s, decode_run, v + c * W, stride, rows, acc + c * W, dim, ahead), c += 4;
    if constexpr (C > 2)
        if (c + 2 <= n) weighted<T, H, 2>(s, decode_run, v + c * W, stride, rows, acc + c * W, dim, ahead), c += 2;
    if constexpr (Pairs<T>::n == 1)
        if (c < n) weighted<T, H, 1>(s, decode_run, v + c * W, stride, rows, acc + c * W, dim, ahead);
}

// Rows go in groups of at most 4, as even as they come.
DP_INLINE int next_group(int left) { return left <= 4 ? left : left == 5 || left == 6 || left == 9 ? 3 : 4; }

// `group` rows after each other see the same keys.
template <class T>
void decode_block(const T *k, const T *v, size_t stride, const float *q, int dim, int value_dim, int m, int group,
                  const Range *seen, int lo, int hi, float softcap, float *s, float *max, float *exp_sum, float *acc) {
    size_t walks = 0;
    for (int h = 0; h < m; h += next_group(m - h)) walks++;
    for (int first = lo; first < hi; first += decode_run) {
        int keys = lesser(hi - first, decode_run), padded = (keys + W - 1) / W * W;
        for (int tile = 0; tile < keys; tile += 64) {  // K rows of a tile stay in L1 for the next group of rows
            int n = lesser(keys - tile, 64);
            const T *rows = k + (size_t)(first + tile) * dim;
            Prefetch ahead = {reinterpret_cast<const char *>(rows) + prefetch_bytes, dim * sizeof(T) * 256 / walks};
            for (int h = 0, g; h < m; h += g) {
                g = next_group(m - h);
                const float *qh = q + h * dim;
                float *sh = s + h * decode_run + tile;
                if (g == 4)
                    score_run<T, 4>(qh, dim, rows, n, sh, ahead);
                else if (g == 3)
                    score_run<T, 3>(qh, dim, rows, n, sh, ahead);
                else if (g == 2)
                    score_run<T, 2>(qh, dim, rows, n, sh, ahead);
                else
                    score_run<T, 1>(qh, dim, rows, n, sh, ahead);
            }
        }
        auto seen_of = [&](int from, int to, int h) -> Range {
            return {greater(seen[h].lo - first, from), lesser(seen[h].hi - first, to)};
        };
        for (int h = 0; h < m; h++) {
            Range r = seen_of(0, keys, h);
            if (r.hi <= r.lo) continue;
            float keep = weigh(s + h * decode_run, padded, r, softcap, max[h], exp_sum[h]);
            if (keep != 1.0f)
                for (int d = 0; d < value_dim; d += W)
                    store(acc + h * value_dim + d, load(acc + h * value_dim + d) * keep);
        }
        for (int tile = 0; tile < keys; tile += value_run) {
            const int end = lesser(keys, tile + value_run);
            const Range all = seen_of(tile, end, 0);
            int alike = m;  // rows after each other that see the same keys of this tile
            for (int h = group; h < m; h += group)
                if (Range r = seen_of(tile, end, h); r.lo != all.lo || r.hi != all.hi) alike = group;
            size_t value_walks = 0;
            for (int h = 0, g; h < m; h += g) value_walks += walks_of(g = next_group(alike - h % alike), value_dim / W);
            Prefetch ahead = {reinterpret_cast<const char *>(v + (size_t)(first + tile) * stride) + prefetch_bytes,
                              stride * sizeof(T) * 256 / value_walks};
            for (int h = 0, g; h < m; h += g) {
                g = next_group(alike - h % alike);
                const Range r = seen_of(tile, end, h);
                const int n = r.hi - r.lo;
                if (n <= 0) continue;
                const T *rows = v + (size_t)(first + r.lo) * stride;
                const float *sh = s + h * decode_run + r.lo;
                float *ah = acc + h * value_dim;
                if (g == 4)
                    value_pass<T, 4>(sh, rows, stride, n, ah, value_dim, ahead);
                else if (g == 3)
                    value_pass<T, 3>(sh, rows, stride, n, ah, value_dim, ahead);
                else if (g == 2)
                    value_pass<T, 2>(sh, rows, stride, n, ah, value_dim, ahead);
                else
                    value_pass<T, 1>(sh, rows, stride, n, ah, value_dim, ahead);
            }
        }
    }
}

// Even elements, then odd ones, of each 2W.
DP_INLINE void split_pairs(float *row, int dim) {
    float t[2 * W];
    for (int i = 0; i < dim; i += 2 * W) {
        for (int j = 0; j < W; j++) t[j] = row[i + 2 * j], t[W + j] = row[i + 2 * j + 1];
        memcpy(row + i, t, sizeof t);
    }
}
DP_INLINE void join_pairs(float *row, int dim) {
    for (int i = 0; i < dim; i += 2 * W) {
        vf lo, hi;
        interleave(load(row + i), load(row + i + W), lo, hi);
        store(row + i, lo);
        store(row + i + W, hi);
    }
}

template <class T>
void decode_item(const Call &c, const DecodeItem &item, Scratch scratch) {
    const Block &block = c.blocks[item.block];
    const int m = item.row_count * c.group, heads = c.kv_heads * c.group;
    const size_t head_bytes = (size_t)c.block_tokens * c.head_dim * sizeof(T);
    const T *k = reinterpret_cast<const T *>(block.data + item.head * head_bytes * (c.latent ? 1 : 2));
    const T *v = c.latent ? k : k + (size_t)c.block_tokens * c.head_dim;

    // A row length that is no whole number of vectors is widened to one first, zeros behind, run by run: rare, so simple.
    constexpr int unit = W * Pairs<T>::n;
    const bool direct = c.head_dim % unit == 0 && c.value_dim % unit == 0;
    const int dim = direct ? c.head_dim : (c.head_dim + W - 1) / W * W;
    const int value_dim = direct ? c.value_dim : (c.value_dim + W - 1) / W * W;
    const bool paired = direct && Pairs<T>::n == 2;
    const int wide = direct ? 0 : lesser(block.tokens, decode_run);
    const size_t extra = (size_t)wide * (dim + value_dim);
    const size_t scales = scaled<T> ? c.head_dim + c.value_dim : 0;
    float *space = scratch((size_t)m * (dim + decode_run + value_dim + sizeof(Range) / 4) + extra + scales);
    float *q = space + extra, *s = q + m * dim, *acc = s + m * decode_run;
    Range *seen = reinterpret_cast<Range *>(acc + m * value_dim);
    float *key_scale = reinterpret_cast<float *>(seen + m), *value_scale = key_scale + c.head_dim;
    if constexpr (scaled<T>) {  // of K into the query, of V out of the sum: elements are used as they are
        const int stream = item.head * (c.latent ? 1 : 2);
        read_scales<T>(c, block, stream, c.head_dim, key_scale);
        read_scales<T>(c, block, stream + !c.latent, c.value_dim, value_scale);
    }

    int lo = block.tokens, hi = 0;
    float *max = item.partial, *exp_sum = max + m, *out = exp_sum + m;
    for (int r = 0; r < m; r++) {
        int row = item.row_begin + r / c.group;
        seen[r] = visible(c.row_position[row], block.position, block.tokens, c.window);
        if (seen[r].lo < seen[r].hi) lo = lesser(lo, seen[r].lo), hi = greater(hi, seen[r].hi);
        const float *from = c.q + ((size_t)row * heads + (size_t)item.head * c.group + r % c.group) * c.head_dim;
        for (int d = 0; d < c.head_dim; d++) q[r * dim + d] = from[d] * c.scale;
        if constexpr (scaled<T>)
            for (int d = 0; d < c.head_dim; d++) q[r * dim + d] *= key_scale[d];
        for (int d = c.head_dim; d < dim; d++) q[r * dim + d] = 0;
        if (paired) split_pairs(q + r * dim, dim);
        max[r] = -__builtin_inff();
        exp_sum[r] = 0;
    }
    for (int i = 0; i < m * value_dim; i++) acc[i] = 0;
    if (direct) {
        decode_block<T>(k, v, c.head_dim, q, dim, value_dim, m, c.group, seen, lo, hi, c.softcap, s, max, exp_sum, acc);
    } else {
        float *wide_k = space, *wide_v = space + (size_t)wide * dim;
        for (int first = lo, before = 0; first < hi; before = first, first += decode_run) {
            const int keys = lesser(hi - first, decode_run);
            for (int t = 0; t < keys; t++) {
                const T *from_k = k + (size_t)(first + t) * c.head_dim, *from_v = v + (size_t)(first + t) * c.head_dim;
                for (int d = 0; d < dim; d++) wide_k[(size_t)t * dim + d] = d < c.head_dim ? widen(from_k[d]) : 0;
                for (int d = 0; d < value_dim; d++)
                    wide_v[(size_t)t * value_dim + d] = d < c.value_dim ? widen(from_v[d]) : 0;
            }
            for (int r = 0; r < m; r++) seen[r].lo -= first - before, seen[r].hi -= first - before;
            decode_block<float>(wide_k, wide_v, value_dim, q, dim, value_dim, m, c.group, seen, 0, keys, c.softcap, s,
                                max, exp_sum, acc);
        }
    }
    for (int r = 0; r < m; r++) {
        if (paired) join_pairs(acc + r * value_dim, value_dim);
        if constexpr (scaled<T>)
            for (int d = 0; d < c.value_dim; d++) acc[(size_t)r * value_dim + d] *= value_scale[d];
        memcpy(out + (size_t)r * c.value_dim, acc + (size_t)r * value_dim, c.value_dim * sizeof(float));
    }
}

// The left fold of the contract, for one row and head at a time.
DP_INLINE void fold_row(float &max, float &exp_sum, float *acc, float m, float z, const float *a, int dim) {
    const float inf = __builtin_inff();
    if (m == -inf) return;
    float next = max < m || m != m ? m : max;  // a NaN must not get lost
    float keep = max == next ? 1.0f : max == -inf ? 0.0f : __builtin_expf(max - next);
    float take = m == next ? 1.0f : __builtin_expf(m - next);
    exp_sum = exp_sum * keep + z * take;
    max = next;
    int d = 0;
    for (; d + W <= dim; d += W) store(acc + d, load(acc + d) * keep + load(a + d) * take);
    for (; d < dim; d++) acc[d] = acc[d] * keep + a[d] * take;
}

void fold_item(const Call &c, const FoldItem &fold, const DecodeItem *items) {
    const DecodeItem &head = items[fold.first];
    const int m = head.row_count * c.group, heads = c.kv_heads * c.group;
    for (int r = 0; r < m; r++) {
        size_t at = (size_t)(head.row_begin + r / c.group) * heads + (size_t)head.head * c.group + r % c.group;
        for (int i = 0; i < fold.count; i++) {
            const float *p = items[fold.first + (size_t)i * fold.step].partial;
            fold_row(c.max[at], c.exp_sum[at], c.acc + at * c.value_dim, p[r], p[m + r],
                     p + 2 * m + (size_t)r * c.value_dim, c.value_dim);
        }
    }
}

}  // namespace DUALPATH_ISA
