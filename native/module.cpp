// The Python face: borrows arrays through the buffer protocol, validates everything, releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

#if defined(DUALPATH_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

#include "attend.hpp"
#include "merge.hpp"

namespace nb = nanobind;

#define DP_DECLARE(isa)                   \
    namespace isa {                       \
    extern const dualpath::Kernel kernel; \
    }
#if defined(DUALPATH_X86)
#if defined(DUALPATH_AMX)
DP_DECLARE(dualpath_amx)
#endif
DP_DECLARE(dualpath_avx512)
DP_DECLARE(dualpath_avx2)
#endif
DP_DECLARE(dualpath_portable)

namespace dualpath {
namespace {

struct Variant {
    const char *name;
    const Kernel *kernel;
    bool usable;
};

#if defined(DUALPATH_AMX)
// The matrix unit with bf16, vector conversions to bf16, and the system's leave to use the former in all threads.
bool has_amx() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return false;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1)) return false;
    constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

std::vector<Variant> &variants() {
    static std::vector<Variant> all = [] {
        std::vector<Variant> list;
#if defined(DUALPATH_X86)
        __builtin_cpu_init();
        bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
        bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#if defined(DUALPATH_AMX)
        list.push_back({"amx", &dualpath_amx::kernel, avx512 && has_amx()});
#endif
        list.push_back({"avx512", &dualpath_avx512::kernel, avx512});
        list.push_back({"avx2", &dualpath_avx2::kernel, avx2});
#endif
        list.push_back({"portable", &dualpath_portable::kernel, true});
        return list;
    }();
    return all;
}

const Kernel &kernel_named(const std::string &name) {
    for (const auto &v : variants())
        if (v.name == name && v.usable) return *v.kernel;
    throw nb::value_error(("no kernel named " + name + " for this processor").c_str());
}

[[noreturn]] void refuse(const std::string &why) { throw nb::value_error(why.c_str()); }

void check_threads(int threads) {
    constexpr int most = 1024;  // dualpath.attention.dispatch.MAX_THREADS
    if (threads < 1 || threads > most) refuse("threads must be 1 to " + std::to_string(most));
}

// Others may have the interpreter meanwhile. Where it ends before this thread has it back, Python (until 3.13) ends the
// thread by unwinding its stack: that would end the process (destructors must not throw), and give buffers back without
// the interpreter. Such a thread waits here for the end of the process instead.
class Unlocked {
public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    Unlocked(const Unlocked &) = delete;
    ~Unlocked() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) pause();
        }
    }

private:
    PyThreadState *state_;
};

// A C-contiguous array borrowed from Python. `kind` is 'f' (float), 'i' (signed integer) or 'u' (bytes).
class Array {
public:
    Array(nb::handle object, const char *name, char kind, int item_bytes, int dimensions, bool writable) {
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
            PyErr_Clear();
            refuse(std::string(name) + " must be a C-contiguous " + (writable ? "writable " : "") + "array");
        }
        const char *format = view_.format ? view_.format : "B";
        if (*format == '<' || *format == '=' || *format == '@') format++;
        const std::string codes = kind == 'f' ? "fd" : kind == 'i' ? "bhilq" : "Bbc";
        const bool known = *format && !format[1] && codes.find(*format) != std::string::npos;
        std::string why;
        if (!known || view_.itemsize != item_bytes)
            why = std::string(name) + " must have items of " + std::to_string(item_bytes) + " bytes of kind " + kind +
                  ", not format " + format;
        else if (view_.ndim != dimensions)
            why = std::string(name) + " must have " + std::to_string(dimensions) + " dimensions, not " +
                  std::to_string(view_.ndim);
        else if (item_bytes > 1 && reinterpret_cast<uintptr_t>(view_.buf) % item_bytes)
            why = std::string(name) + " is not aligned to its items";
        if (!why.empty()) {
            PyBuffer_Release(&view_);
            refuse(why);
        }
        name_ = name;
    }
    Array(Array &&other) noexcept : view_(other.view_), name_(other.name_) { other.view_.obj = nullptr; }
    Array(const Array &) = delete;
    ~Array() {
        if (view_.obj) PyBuffer_Release(&view_);
    }

    template <class T>
    T *as() const {
        return static_cast<T *>(view_.buf);
    }
    int64_t size(int d) const { return view_.shape ? view_.shape[d] : view_.len; }
    int64_t bytes() const { return view_.len; }
    void expect(int d, int64_t size) const {
        if (this->size(d) != size)
            refuse(std::string(name_) + " has length " + std::to_string(this->size(d)) + " in dimension " +
                   std::to_string(d) + ", expected " + std::to_string(size));
    }

private:
    Py_buffer view_{};
    const char *name_ = "";
};

// Where the parts of a layer block lie: dualpath.kv.layout.Parts.
struct Parts {
    int64_t data, scales_at, bytes;
};

Parts parts_of(int64_t streams, int64_t block_tokens, int64_t width, Dtype dtype) {
    auto aligned = [](int64_t size) { return (size + 63) / 64 * 64; };
    const int64_t elements = streams * block_tokens * width;
    if (dtype < Dtype::int8) {
        const int64_t data = elements * (dtype == Dtype::float32 ? 4 : 2);
        return {data, data, data};
    }
    return {elements, aligned(elements), aligned(aligned(elements) + streams * width * 2)};
}

std::vector<Block> read_blocks(const Call &c, const std::vector<Array> &buffers, const Array &buffer,
                               const Array &offset, const Array &tokens, const Array &position) {
    const int64_t n = buffer.size(0), item = c.dtype == Dtype::float32 ? 4 : 2;
    offset.expect(0, n);
    tokens.expect(0, n);
    position.expect(0, n);
    const int64_t need = parts_of((int64_t)c.kv_heads * (c.latent ? 1 : 2), c.block_tokens, c.head_dim, c.dtype).bytes;
    std::vector<Block> blocks(n);
    for (int64_t i = 0; i < n; i++) {
        const int32_t which = buffer.as<int32_t>()[i], count = tokens.as<int32_t>()[i];
        const int64_t at = offset.as<int64_t>()[i];
        auto bad = [&](const std::string &why) { refuse("block " + std::to_string(i) + ": " + why); };
        if (which < 0 || which >= (int64_t)buffers.size()) bad("there is no buffer " + std::to_string(which));
        if (at < 0 || at > buffers[which].bytes() - need)
            bad("offset " + std::to_string(at) + " + " + std::to_string(need) + " bytes exceed buffer " +
                std::to_string(which) + " of " + std::to_string(buffers[which].bytes()) + " bytes");
        if (count < 1 || count > c.block_tokens)
            bad(std::to_string(count) + " tokens, but blocks hold 1.." + std::to_string(c.block_tokens));
        const unsigned char *data = buffers[which].as<unsigned char>() + at;
        if (reinterpret_cast<uintptr_t>(data) % item)
            bad("its address is not aligned to " + std::to_string(item) + " bytes");
        const int64_t first = position.as<int64_t>()[i];
        if (first < 0 || first > std::numeric_limits<int64_t>::max() / 4)
            bad("position " + std::to_string(first) + " is out of range");
        blocks[i] = {data, first, count};
    }
    return blocks;
}

std::vector<Sequence> read_sequences(const Array &row_start, const Array &block_start, int64_t rows, int64_t blocks) {
    const int64_t n = row_start.size(0);
    block_start.expect(0, n);
    if (n < 1) refuse("row_start and block_start must hold at least one entry (0)");
    const int32_t *r = row_start.as<int32_t>(), *b = block_start.as<int32_t>();
    if (r[0] != 0 || r[n - 1] != rows)
        refuse("row_start must begin with 0 and end with the number of rows, " + std::to_string(rows));
    if (b[0] != 0 || b[n - 1] != blocks)
        refuse("block_start must begin with 0 and end with the number of blocks, " + std::to_string(blocks));
    std::vector<Sequence> sequences(n - 1);
    for (int64_t i = 0; i + 1 < n; i++) {
        if (r[i + 1] < r[i] || b[i + 1] < b[i])
            refuse("row_start and block_start must not decrease (sequence " + std::to_string(i) + ")");
        sequences[i] = {r[i], r[i + 1], b[i], b[i + 1]};
    }
    return sequences;
}

void attend_py(const std::string &kernel_name, nb::handle max_, const std::optional<nb::object> &exp_sum_,
               nb::handle acc_, nb::handle q_, nb::handle row_position_, nb::sequence buffers_, nb::handle buffer_, nb::handle offset_,
               nb::handle tokens_, nb::handle position_, nb::handle row_start_, nb::handle block_start_, int kv_heads,
               int head_dim, int value_dim, int block_tokens, int dtype, bool latent, double scale, double softcap,
               int64_t window, int threads) {
    const Kernel &kernel = kernel_named(kernel_name);
    constexpr int limit = 1 << 16;
    if (kv_heads < 1 || head_dim < 1 || value_dim < 1 || block_tokens < 1 || kv_heads > limit || head_dim > limit ||
        value_dim > limit || block_tokens > 1 << 20)
        refuse("geometry: kv_heads, head_dim, value_dim and block_tokens must be positive and sane");
    if (latent ? value_dim > head_dim : value_dim != head_dim)
        refuse("geometry: value_dim must equal head_dim, or be at most head_dim for a latent layer");
    if (dtype < 0 || dtype > 4) refuse("geometry: unknown dtype code");
    if (!std::isfinite(scale) || !std::isfinite(softcap) || softcap < 0)
        refuse("scale must be finite, softcap finite and not negative");
    if (window < 0) refuse("window must not be negative");
    check_threads(threads);

    Array q(q_, "q", 'f', 4, 3, false), row_position(row_position_, "row_position", 'i', 8, 1, false);
    Array max(max_, "state.max", 'f', 4, 2, true), acc(acc_, "state.acc", 'f', 4, 3, true);
    std::optional<Array> exp_sum;  // none: start from no keys at all, and finish: max becomes lse, acc becomes out
    std::vector<float> own_exp_sum;
    if (exp_sum_) exp_sum.emplace(*exp_sum_, "state.exp_sum", 'f', 4, 2, true);
    const int64_t rows = q.size(0), heads = q.size(1);
    q.expect(2, head_dim);
    if (rows > std::numeric_limits<int32_t>::max() / 4) refuse("too many rows");
    if (heads < 1 || heads % kv_heads || heads / kv_heads > 4096)
        refuse("q has " + std::to_string(heads) + " heads, which is no multiple of the " + std::to_string(kv_heads) +
               " kv heads");
    row_position.expect(0, rows);
    max.expect(0, rows), max.expect(1, heads);
    if (exp_sum) exp_sum->expect(0, rows), exp_sum->expect(1, heads);
    acc.expect(0, rows), acc.expect(1, heads), acc.expect(2, value_dim);
    for (int64_t i = 0; i < rows; i++)
        if (int64_t p = row_position.as<int64_t>()[i]; p < 0 || p > std::numeric_limits<int64_t>::max() / 4)
            refuse("row_position[" + std::to_string(i) + "] = " + std::to_string(p) + " is out of range");

    std::vector<Array> buffers;
    buffers.reserve(nb::len(buffers_));
    for (nb::handle b : buffers_) buffers.emplace_back(b, "each of buffers", 'u', 1, 1, false);
    Array buffer(buffer_, "buffer", 'i', 4, 1, false), offset(offset_, "offset", 'i', 8, 1, false),
        tokens(tokens_, "tokens", 'i', 4, 1, false);
    Array position(position_, "position", 'i', 8, 1, false), row_start(row_start_, "row_start", 'i', 4, 1, false),
        block_start(block_start_, "block_start", 'i', 4, 1, false);

    if (!exp_sum) own_exp_sum.assign(rows * heads, 0.0f);
    Call call{kv_heads,        (int)(heads / kv_heads),
              head_dim,        value_dim,
              block_tokens,    (Dtype)dtype,
              latent,          (float)scale,
              (float)softcap,  window,
              q.as<float>(),   row_position.as<int64_t>(),
              max.as<float>(), exp_sum ? exp_sum->as<float>() : own_exp_sum.data(),
              acc.as<float>(), nullptr,
              0};
    call.scales_at = parts_of((int64_t)kv_heads * (latent ? 1 : 2), block_tokens, head_dim, call.dtype).scales_at;
    const auto blocks = read_blocks(call, buffers, buffer, offset, tokens, position);
    const auto sequences = read_sequences(row_start, block_start, rows, (int64_t)blocks.size());
    call.blocks = blocks.data();
    Unlocked unlocked;
    if (!exp_sum) std::fill_n(call.max, rows * heads, lowest), std::fill_n(call.acc, rows * heads * value_dim, 0.0f);
    attend(kernel, call, sequences, threads);
    if (!exp_sum)
        finish({call.max, call.exp_sum, call.acc}, nullptr, call.acc, call.max, rows * heads, value_dim, heads);
}

constexpr int64_t large = 1 << 16;  // items from which on others may have the interpreter meanwhile

template <class Work>
void unlocked_if(bool worth_it, Work work) {
    if (!worth_it) return work();
    Unlocked unlocked;
    work();
}

std::optional<Array> borrow_sinks(const std::optional<nb::object> &sinks, int64_t heads) {
    if (!sinks) return std::nullopt;
    Array found(*sinks, "sinks", 'f', 4, 1, false);
    found.expect(0, heads);
    return found;
}

// Without an exp_sum the state is finished: max becomes lse, acc becomes out.
void combine_py(nb::sequence parts_, nb::handle max_, const std::optional<nb::object> &exp_sum_, nb::handle acc_,
                const std::optional<nb::object> &sinks_) {
    Array max(max_, "max", 'f', 4, 2, true), acc(acc_, "acc", 'f', 4, 3, true);
    const int64_t rows = max.size(0), heads = max.size(1), width = acc.size(2), count = rows * heads;
    auto fit = [&](const Array &array, int dimensions) {
        array.expect(0, rows), array.expect(1, heads);
        if (dimensions == 3) array.expect(2, width);
    };
    fit(acc, 3);
    std::optional<Array> exp_sum;
    std::vector<float> own_exp_sum;
    if (exp_sum_)
        fit(exp_sum.emplace(*exp_sum_, "exp_sum", 'f', 4, 2, true), 2);
    else
        own_exp_sum.resize(count);
    const auto sinks = borrow_sinks(sinks_, heads);

    std::vector<Array> borrowed;
    std::vector<StateOf<const float>> parts;
    borrowed.reserve(3 * nb::len(parts_));
    auto borrow = [&](nb::handle array, const char *name, int dimensions) -> const float * {
        fit(borrowed.emplace_back(array, name, 'f', 4, dimensions, false), dimensions);
        return borrowed.back().as<const float>();
    };
    for (nb::handle part : parts_) {
        nb::object sum = part[1];
        parts.push_back(
            {borrow(part[0], "max", 2), sum.is_none() ? nullptr : borrow(sum, "exp_sum", 2), borrow(part[2], "acc", 3)});
    }
    const StateOf<float> into{max.as<float>(), exp_sum ? exp_sum->as<float>() : own_exp_sum.data(), acc.as<float>()};
    unlocked_if(count * width >= large, [&] {
        combine(parts, into, count, width);
        if (!exp_sum)
            finish({into.max, into.exp_sum, into.acc}, sinks ? sinks->as<float>() : nullptr, into.acc, into.max, count,
                   width, heads);
    });
}

void finish_py(nb::handle max_, nb::handle exp_sum_, nb::handle acc_, const std::optional<nb::object> &sinks_,
               nb::handle out_, nb::handle lse_) {
    Array max(max_, "max", 'f', 4, 2, false), exp_sum(exp_sum_, "exp_sum", 'f', 4, 2, false),
        acc(acc_, "acc", 'f', 4, 3, false), out(out_, "out", 'f', 4, 3, true), lse(lse_, "lse", 'f', 4, 2, true);
    const int64_t rows = max.size(0), heads = max.size(1), width = acc.size(2), count = rows * heads;
    for (const Array *array : {&exp_sum, &acc, &out, &lse}) array->expect(0, rows), array->expect(1, heads);
    out.expect(2, width);
    const auto sinks = borrow_sinks(sinks_, heads);
    unlocked_if(count * width >= large, [&] {
        finish({max.as<float>(), exp_sum.as<float>(), acc.as<float>()}, sinks ? sinks->as<float>() : nullptr,
               out.as<float>(), lse.as<float>(), count, width, heads);
    });
}

void copy_blocks_py(nb::handle source_, nb::sequence offsets_, nb::sequence destinations_, int64_t block_bytes) {
    Array source(source_, "source", 'u', 1, 1, false);
    if (block_bytes < 0) refuse("block_bytes must not be negative");
    std::vector<Array> destinations;
    std::vector<int64_t> offsets;
    destinations.reserve(nb::len(destinations_));
    offsets.reserve(nb::len(offsets_));
    for (nb::handle d : destinations_) {
        destinations.emplace_back(d, "each of destinations", 'u', 1, 1, true);
        destinations.back().expect(0, block_bytes);
    }
    for (nb::handle o : offsets_) {
        offsets.push_back(nb::cast<int64_t>(o));
        if (offsets.back() < 0 || offsets.back() > source.bytes() - block_bytes)
            refuse("a block at " + std::to_string(offsets.back()) + " is not within the source");
    }
    if (offsets.size() != destinations.size()) refuse("offsets and destinations must be as many");
    Unlocked unlocked;
    for (size_t i = 0; i < offsets.size(); i++)
        std::memcpy(destinations[i].as<unsigned char>(), source.as<unsigned char>() + offsets[i], (size_t)block_bytes);
}

void encode_py(const std::string &kernel_name, nb::handle from_, int from_dtype, nb::handle to_, int dtype, int streams,
               int block_tokens, int tokens, int width) {
    const Kernel &kernel = kernel_named(kernel_name);
    constexpr int limit = 1 << 17;
    if (streams < 1 || width < 1 || block_tokens < 1 || streams > limit || width > limit || block_tokens > 1 << 20)
        refuse("streams, block_tokens and width must be positive and sane");
    if (tokens < 0 || tokens > block_tokens) refuse("tokens must be within the block");
    if (from_dtype < 0 || from_dtype > 2 || dtype < 3 || dtype > 4) refuse("from a float dtype to one of one byte");
    Array from(from_, "source", 'u', 1, 1, false), to(to_, "destination", 'u', 1, 1, true);
    const Parts parts = parts_of(streams, block_tokens, width, (Dtype)dtype);
    from.expect(0, parts_of(streams, block_tokens, width, (Dtype)from_dtype).bytes);
    to.expect(0, parts.bytes);
    if (reinterpret_cast<uintptr_t>(from.as<unsigned char>()) % (from_dtype == 0 ? 4 : 2) ||
        reinterpret_cast<uintptr_t>(to.as<unsigned char>()) % 2)
        refuse("source and destination must be aligned");
    memset(to.as<unsigned char>() + parts.data, 0, parts.bytes - parts.data);  // padding
    const Encoding encoding{from.as<unsigned char>(), (Dtype)from_dtype, (Dtype)dtype, block_tokens, tokens, width,
                            to.as<unsigned char>(),   (size_t)parts.scales_at};
    Unlocked unlocked;
    encode(kernel, encoding, streams);
}

float read_bandwidth_py(nb::handle buffer_, int threads) {
    Array buffer(buffer_, "buffer", 'u', 1, 1, false);
    check_threads(threads);
    for (const auto &v : variants()) {
        if (!v.usable) continue;
        Unlocked unlocked;
        return read_all(*v.kernel, buffer.as<unsigned char>(), (size_t)buffer.bytes(), threads);
    }
    return 0;
}

}  // namespace
}  // namespace dualpath

NB_MODULE(_native, m) {
    using namespace dualpath;
    m.doc() = "The native attention kernel; see dualpath.attention.";
    m.def("attend", &attend_py, "Fold blocks into a state; without an exp_sum make (lse, out) of max and acc.");
    m.def("combine", &combine_py);
    m.def("finish", &finish_py);
    m.def("copy_blocks", &copy_blocks_py);
    m.def("encode", &encode_py, "Quantise one layer block; see dualpath.attention.encoding.");
    m.def("read_bandwidth", &read_bandwidth_py, nb::arg("buffer"), nb::arg("threads"),
          "Read a uint8 array once with that many threads; returns a meaningless sum.");
    m.def(
        "variants",
        [] {
            nb::list names;
            for (const auto &v : variants())
                if (v.usable) names.append(v.name);
            return nb::tuple(names);
        },
        "Kernels that this processor can run, best first.");
}
