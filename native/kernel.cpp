// The kernel of one instruction set. Compiled several times; DUALPATH_ISA names the namespace and the kernel.
//
// Nothing here may use inline functions of the standard library: the linker keeps one copy of those, and it might be
// the one compiled for instructions that this processor lacks.
#include "kernel.hpp"

namespace DUALPATH_ISA {
using namespace dualpath;
}

#include "decode.hpp"
#include "prefill.hpp"
#include "amx.hpp"
#include "encode.hpp"

namespace DUALPATH_ISA {

static void decode(const Call &c, const DecodeItem *items, int begin, int end, Scratch scratch) {
    for (int i = begin; i < end; i++) {
        switch (c.dtype) {
            case Dtype::float32: decode_item<float>(c, items[i], scratch); break;
            case Dtype::bfloat16: decode_item<bf16>(c, items[i], scratch); break;
            case Dtype::float16: decode_item<fp16>(c, items[i], scratch); break;
            case Dtype::int8: decode_item<int8>(c, items[i], scratch); break;
            case Dtype::float8: decode_item<fp8>(c, items[i], scratch); break;
        }
    }
}

static void fold(const Call &c, const FoldItem *folds, const DecodeItem *items, int begin, int end) {
    for (int i = begin; i < end; i++) fold_item(c, folds[i], items);
}

// On the matrix unit, where there is one that the rows fit.
template <class T>
static void prefill_narrow(const Call &c, const PrefillItem &item, Scratch scratch) {
#if defined(__AMX_BF16__)
    if (c.head_dim % 32 == 0 && c.value_dim % 32 == 0 && matrix_prefill_item<T>(c, item, scratch)) return;
#endif
    prefill_item<T>(c, item, scratch);
}

static void prefill(const Call &c, const PrefillItem *items, int begin, int end, Scratch scratch) {
    for (int i = begin; i < end; i++) {
        switch (c.dtype) {
            case Dtype::float32: prefill_item<float>(c, items[i], scratch); break;
            case Dtype::bfloat16: prefill_narrow<bf16>(c, items[i], scratch); break;
            case Dtype::float16: prefill_item<fp16>(c, items[i], scratch); break;
            case Dtype::int8: prefill_narrow<int8>(c, items[i], scratch); break;
            case Dtype::float8: prefill_narrow<fp8>(c, items[i], scratch); break;
        }
    }
}

template <class T>
static void encode_as(const Encoding &e, int begin, int end, Scratch scratch) {
    for (int i = begin; i < end; i++) {
        switch (e.from_dtype) {
            case Dtype::float32: encode_stream<float, T>(e, i, scratch); break;
            case Dtype::bfloat16: encode_stream<bf16, T>(e, i, scratch); break;
            default: encode_stream<fp16, T>(e, i, scratch); break;
        }
    }
}

static void encode(const Encoding &e, int begin, int end, Scratch scratch) {
    (e.dtype == Dtype::int8 ? encode_as<int8> : encode_as<fp8>)(e, begin, end, scratch);
}

static float read(const unsigned char *data, size_t bytes) {
    const float *p = reinterpret_cast<const float *>(data);
    vf a[16] = {};
    for (size_t i = 0; i + 16 * W <= bytes / 4; i += 16 * W) {
        DP_UNROLL
        for (int j = 0; j < 16; j++) a[j] += load(p + i + j * W);
    }
    for (int j = 1; j < 16; j++) a[0] += a[j];
    return sum(a[0]);
}

#define DP_STRING1(x) #x
#define DP_STRING(x) DP_STRING1(x)
extern const Kernel kernel;
const Kernel kernel = {DP_STRING(DUALPATH_ISA), decode, fold, prefill, encode, read};

}  // namespace DUALPATH_ISA
