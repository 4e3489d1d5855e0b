#include "attend.hpp"

#include <algorithm>

#include "pool.hpp"

namespace dualpath {
namespace {

constexpr size_t wave_floats = 1 << 18;    // partials of a wave: 1 MB, so that the fold reads them from a cache
constexpr size_t chunk_bytes = 512 << 10;  // what a thread reads in one go

size_t element_bytes(Dtype dtype) { return dtype == Dtype::float32 ? 4 : dtype >= Dtype::int8 ? 1 : 2; }

size_t head_bytes(const Call &c) {
    return (size_t)c.block_tokens * c.head_dim * element_bytes(c.dtype) * (c.latent ? 1 : 2);
}

struct Span {
    int64_t low, high;
};

Span positions(const Call &c, const Sequence &s) {
    auto [low, high] = std::minmax_element(c.row_position + s.row_begin, c.row_position + s.row_end);
    return {*low, *high};
}

bool sees(const Call &c, Span rows, const Block &b) {
    return b.position <= rows.high && (c.window == 0 || b.position + b.tokens - 1 > rows.low - c.window);
}

template <class Work>
void run(int items, int chunk, int threads, Work work) {
    parallel(items, chunk, threads, [](void *w, int begin, int end) { (*static_cast<Work *>(w))(begin, end); }, &work);
}

// A caller's buffers, kept for its next call: fresh memory would cost a page fault per 4 KB.
struct Buffers {
    std::vector<DecodeItem> items;
    std::vector<FoldItem> folds;
    std::vector<float> partials;
};
thread_local Buffers buffers;

// Blocks x heads in the order in which they lie in memory, in waves; after each wave the partials are folded in token
// order. A block's partial depends on nothing but the block and the row, so any thread may compute any of them.
class Decode {
public:
    Decode(const Kernel &kernel, const Call &call, int threads) : kernel_(kernel), call_(call), threads_(threads) {
        items_.clear();
        folds_.clear();
    }

    void add(const Sequence &s) {
        const int rows = s.row_end - s.row_begin;
        const size_t floats = partial_floats(call_, rows);
        const Span span = positions(call_, s);
        int first = -1, count = 0;
        for (int b = s.block_begin; b < s.block_end; b++) {
            if (!sees(call_, span, call_.blocks[b])) continue;
            if (count && used_ + floats * call_.kv_heads > wave_floats) {
                close(first, count);
                flush();
                count = 0;
            }
            if (!count) first = (int)items_.size();
            for (int h = 0; h < call_.kv_heads; h++, used_ += floats)
                items_.push_back({s.row_begin, rows, b, h, used_});
            count++;
        }
        if (count) close(first, count);
        if (used_ > wave_floats) flush();
    }

    void flush() {
        if (items_.empty()) return;
        if (partials_.size() < used_) partials_.resize(used_);
        for (auto &item : items_) item.partial = partials_.data() + item.offset;
        const int n = (int)items_.size();
        int chunk = (int)std::max<size_t>(1, chunk_bytes / std::max<size_t>(1, head_bytes(call_)));
        chunk = std::max(1, std::min(chunk, n / (threads_ * 4)));
        run(n, chunk, threads_, [&](int a, int b) { kernel_.decode(call_, items_.data(), a, b, thread_scratch); });
        const int folds = (int)folds_.size();
        // Folding is short: a second thread pays only where there is much of it.
        const int fold_threads = used_ > 65536 ? threads_ : 1;
        run(folds, std::max(1, folds / (threads_ * 2)), fold_threads,
            [&](int a, int b) { kernel_.fold(call_, folds_.data(), items_.data(), a, b); });
        items_.clear();
        folds_.clear();
        used_ = 0;
    }

private:
    void close(int first, int count) {
        for (int h = 0; h < call_.kv_heads; h++) folds_.push_back({first + h, call_.kv_heads, count});
    }

    const Kernel &kernel_;
    const Call &call_;
    const int threads_;
    size_t used_ = 0;
    std::vector<DecodeItem> &items_ = buffers.items;
    std::vector<FoldItem> &folds_ = buffers.folds;
    std::vector<float> &partials_ = buffers.partials;
};

// Rows x heads in tiles; a tile walks all blocks of its sequence. Last tiles first: under a causal mask they see most.
void prefill(const Kernel &kernel, const Call &call, const std::vector<Sequence> &sequences, int threads) {
    std::vector<PrefillItem> items;
    size_t rows = 0;
    for (const auto &s : sequences) rows += (size_t)(s.row_end - s.row_begin) * call.group * call.kv_heads;
    // This many rows bury the cost of packing K and V; fewer where threads would otherwise stand idle.
    constexpr size_t least = 56, most = 256;
    const size_t tile = std::clamp<size_t>(rows / (threads > 1 ? threads * 4 : 1), least, most);
    for (const auto &s : sequences) {
        const int m = (s.row_end - s.row_begin) * call.group, fewest = (int)((m + tile - 1) / tile);
        int tiles = fewest;  // or a few more, so that every thread gets as many
        while (tiles * call.kv_heads % threads && tiles < fewest + threads && (tiles + 1) * least <= (size_t)m) tiles++;
        if (tiles * call.kv_heads % threads) tiles = fewest;
        for (int t = tiles - 1; t >= 0; t--)
            for (int h = 0; h < call.kv_heads; h++)
                items.push_back({s.row_begin, (int)((int64_t)m * t / tiles), (int)((int64_t)m * (t + 1) / tiles),
                                 s.block_begin, s.block_end, h});
    }
    run((int)items.size(), 1, threads, [&](int a, int b) { kernel.prefill(call, items.data(), a, b, thread_scratch); });
}

}  // namespace

void attend(const Kernel &kernel, const Call &call, const std::vector<Sequence> &sequences, int threads) {
    Decode decode(kernel, call, threads);
    std::vector<Sequence> many;
    for (const auto &s : sequences) {
        if (s.row_begin == s.row_end || s.block_begin == s.block_end) continue;
        if ((s.row_end - s.row_begin) * call.group <= decode_rows)
            decode.add(s);
        else
            many.push_back(s);
    }
    decode.flush();
    if (!many.empty()) prefill(kernel, call, many, threads);
}

void encode(const Kernel &kernel, const Encoding &encoding, int streams) {
    kernel.encode(encoding, 0, streams, thread_scratch);
}

float read_all(const Kernel &kernel, const unsigned char *data, size_t bytes, int threads) {
    std::vector<float> sums(threads, 0.0f);
    run(threads, 1, threads, [&](int a, int b) {
        for (int t = a; t < b; t++) {
            size_t begin = bytes * t / threads / 64 * 64, end = bytes * (t + 1) / threads / 64 * 64;
            sums[t] = kernel.read(data + begin, end - begin);
        }
    });
    float total = 0;
    for (float s : sums) total += s;
    return total;
}

}  // namespace dualpath
