// The kernels as C functions on borrowed tensors: what `_C` hands to `_eager`, which is compiled against another
// part of torch. Nothing of torch is included here.
#pragma once

#include <cstdint>

struct AtenTensorOpaque; // at::Tensor, to who knows it

namespace normkit {

constexpr int64_t API_VERSION = 1;
constexpr const char *API_NAME = "normkit.kernels.cpu._C.api";

// What kind of norm over rows: the bits of `kind`. Python holds the same table.
enum Kind : int64_t { CENTER = 1, ZERO_CENTERED = 2, ROUND_BF16 = 4, ROUND_F16 = 8 };

using Borrowed = AtenTensorOpaque *; // or null, where there is none

// Outputs have the shape of x and are contiguous. y has the dtype of x, total that of x + residual.
struct RowsCall {
    Borrowed x, residual, weight, bias;
    int64_t dims;
    double eps;
    int64_t kind;
    Borrowed y, total;
    Borrowed stats; // (2, rows) in the compute dtype, for a backward
    bool given;     // y and total are the caller's: check them, and write past the cache what does not fit into it
};

// dx, dweight and dbias: null where not needed.
struct RowsBackwardCall {
    Borrowed dy, x, weight, stats, dtotal;
    int64_t dims;
    double eps;
    int64_t kind;
    Borrowed dx, dweight, dbias;
};

// Each returns null, or what is wrong; nothing has been written then.
struct Api {
    int64_t version;
    const char *(*rows_forward)(const RowsCall &);
    const char *(*rows_backward)(const RowsBackwardCall &);
};

const char *rows_forward_of(const RowsCall &call);
const char *rows_backward_of(const RowsBackwardCall &call);

} // namespace normkit
