// What the kernels compute, as plain data, and the table that each instruction set fills.
#pragma once

#include <cstdint>

namespace normkit {

// The dtypes, in the order of every table below.
enum Type : int { F32, F64, BF16, F16, TYPES };

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

// Where row `i` of a tensor starts: up to four outer axes that could not be merged into one.
struct Outer {
    int axes = 1;
    int64_t size[4] = {0}, stride[4] = {0};

    int64_t offset(int64_t i) const {
        if (axes == 1) return i * stride[0];
        int64_t at = 0;
        for (int a = axes - 1; a > 0; --a) {
            at += (i % size[a]) * stride[a];
            i /= size[a];
        }
        return at + i * stride[0];
    }
};

// Rows of `dim` neighbouring numbers: LayerNorm, RMSNorm, and both after a residual add.
struct RowsForward {
    Type x_type, residual_type, total_type; // y has the type of x
    const void *x, *residual;  // residual: or null
    void *total, *y;           // total = x + residual: or null
    const void *weight, *bias; // of the compute dtype: or null
    void *mean, *rstd;         // of the compute dtype: or null
    Outer x_at, residual_at;
    int64_t dim;
    double eps;
    bool center;  // false: about 0, RMSNorm
    Type rounded; // x_hat is rounded to this dtype before it meets the weight; F64: not at all
    bool y_is_x, total_is_term; // in place: nothing may be written twice
    bool stream, stream_total; // write past the cache
};

struct RowsBackward {
    Type dy_type, x_type;
    const void *dy, *x, *dtotal; // dtotal, the gradient of total: or null
    void *dx;                    // of x_type: or null
    const void *weight, *mean, *rstd;
    double *dweight, *dbias;     // one sum a chunk of rows, `dim` numbers each: or null
    Outer dy_at, x_at, dtotal_at;
    int64_t rows, chunk_rows, dim;
    double eps;
    bool center;
    Type rounded;
};

// Any other grouping, in five axes of dense memory:  (k0, r1, k2, r3, i)
// One mean for each (k0, k2), over r1, r3 and i. A channel is a (k2, r3); `i` is what lies inside of it.
//   BatchNorm     (1, N, C, 1, HW)     channels_last (1, NHW, C, 1, 1)
//   InstanceNorm  (N, 1, C, 1, HW)     channels_last (N, HW, C, 1, 1)
//   GroupNorm     (N, 1, G, C/G, HW)   channels_last (N, HW, G, C/G, 1)
//   LayerNorm over the channels of an image          (N, C, HW, 1, 1), with the weight along r1
struct Shape {
    int64_t k0, r1, k2, r3, i;
    int64_t channels() const { return k2 * r3; }
    int64_t groups() const { return k0 * k2; }
    int64_t positions() const { return k0 * r1 * i; } // what a mask has one value for
    int64_t numel() const { return k0 * r1 * k2 * r3 * i; }
};

// What all passes over a tensor share.
struct Groups {
    Type type;
    Shape shape;
    const void *x, *dy;
    void *y; // dx, in a backward
    const bool *mask; // or null; (k0, r1, i)
    const double *weight, *bias; // of each channel; 1 and 0 where they lie along r1
    const double *row_weight, *row_bias; // along r1: or null
    bool center; // false: about 0
    double eps;
    double *mean, *var, *count; // of each group
};

// A part of one k0: rows [row, last), channels [from, from + width). Arrays begin with its first channel.
struct Piece {
    int64_t k0, row, last, from, width;
    double *a, *b;             // what is summed up: mean and m2; sums of dy and of dy * (x - hi)
    double *count;             // of a moment
    const void *hi, *p, *q, *t, *s; // in the compute dtype: y = (x - hi) * p + q;  dx = dy * p + q + (x - hi) * t, or dy * p
    double *row_a, *row_b;     // for each r1, with the weight there
    bool write;                // sums also write dx = dy * p
};

// The channels of a piece of one k0, and their groups.
struct Channels {
    int64_t groups, r3;
    const double *mean, *var, *count; // of a group
    double *rstd;
    const double *weight, *bias, *a, *b; // of a channel
    double *dweight, *dbias;             // or null
    void *hi, *p, *q, *t, *s;            // in the compute dtype; q, t, s: or null
    double eps;
    bool center, fresh; // fresh: dweight and dbias begin here
};

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// A linear layer on a few rows.
struct Linear {
    int64_t rows, in, out;
    const void *x, *weight, *bias; // one dtype; bias: or null
    void *y;
};

// Rows that one chunk of a backward adds up, by shape alone: few rows are worth several threads too, many are cut into
// no more than 256 chunks, whose sums would take memory.
inline int64_t row_chunk(int64_t rows) {
    const int64_t share = rows / 32, small = share < 8 ? 8 : share > 64 ? 64 : share, most = (rows + 255) / 256;
    return small > most ? small : most;
}

// Float32 adds up at most BLOCK_ROWS rows; a column pass holds TILE columns; GRAIN numbers are worth a thread.
constexpr int64_t BLOCK_ROWS = 64, TILE = 2048, GRAIN = 32768;

using RowsForwardFn = void (*)(const RowsForward &, int64_t begin, int64_t end);
using RowsBackwardFn = void (*)(const RowsBackward &, int64_t begin, int64_t end);
using PieceFn = void (*)(const Groups &, const Piece &);
using ChannelsFn = void (*)(const Channels &);

// One of these an instruction set. A null entry: no such combination of dtypes.
struct Kernels {
    const char *name;
    RowsForwardFn (*rows_forward)(Type x, Type residual, bool center);
    RowsBackwardFn (*rows_backward)(Type dy, Type x, bool center);
    // By dtype of the result: the sum of `count` rows of n numbers, columns [begin, end).
    void (*sum_chunks[TYPES])(const double *parts, int64_t count, int64_t n, int64_t begin, int64_t end, void *out);
    void (*linear[TYPES])(const Linear &, int64_t begin, int64_t end); // outputs
    void (*widened[TYPES])(const void *from, float *to, int64_t n); // not from float64
    // By dtype: passes over spans (i > 1) and columns (i == 1), and what happens between them.
    PieceFn span_moments[TYPES], span_apply[TYPES], span_sums[TYPES], span_gradient[TYPES];
    PieceFn column_moments[TYPES], column_apply[TYPES], column_sums[TYPES], column_gradient[TYPES];
    ChannelsFn channel_scales[TYPES], channel_slopes[TYPES];
    double (*peak[TYPES])(const void *x, int64_t n);
    void (*merge_moments)(int64_t n, double *mean, double *m2, double seen, double m, const double *more, const double *more_m2);
};

extern const Kernels generic_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels, avx512_kernels;
#endif

// The same one number after the other: for the rare row whose squares leave the range of the compute dtype.
void careful_row(const RowsForward &job, int64_t row);
void careful_row(const RowsBackward &job, int64_t row, double *dweight, double *dbias);

// Memory of the calling thread, valid until its next call.
void *scratch(int64_t bytes);

} // namespace normkit
