// A norm over rows, forward and backward: check, read the strides, share the rows out among threads. The operators
// and `_eager` call the same.
#include <memory>
#include <string>
#include <vector>

#include "scalar.h"
#include "tensor.h"

namespace normkit {
namespace {

Type rounded(int64_t kind) { return kind & ROUND_BF16 ? BF16 : kind & ROUND_F16 ? F16 : F64; }

// Rows are the last `dims` axes; merge what lies before them.
struct Rows {
    int64_t count = 1, dim = 1;
    Outer at;
};
bool merge(const View &x, int64_t dims, Rows &rows) {
    const int64_t ndim = x.ndim(), *size = x.sizes(), *stride = x.strides();
    rows = Rows();
    int64_t step = 1;
    bool dense = true; // the normalised axes
    for (int64_t a = ndim - 1; a >= ndim - dims; --a) {
        dense = dense && (size[a] == 1 || stride[a] == step);
        step *= size[a];
    }
    rows.dim = step;
    Outer &at = rows.at;
    at.axes = 0;
    int64_t merged_size[4] = {0}, merged_stride[4] = {0};
    for (int64_t a = ndim - dims - 1; a >= 0; --a) { // from the inside out
        rows.count *= size[a];
        if (size[a] == 1) continue;
        if (at.axes && stride[a] == merged_stride[at.axes - 1] * merged_size[at.axes - 1]) {
            merged_size[at.axes - 1] *= size[a];
            continue;
        }
        if (at.axes == 4) return false;
        merged_size[at.axes] = size[a];
        merged_stride[at.axes++] = stride[a];
    }
    for (int a = 0; a < at.axes; ++a) {
        at.size[a] = merged_size[at.axes - 1 - a];
        at.stride[a] = merged_stride[at.axes - 1 - a];
    }
    if (at.axes == 0) at.axes = 1;
    return dense || rows.count * rows.dim == 0;
}

// An input as rows: without a copy wherever the normalised axes are one block of memory.
struct Input {
    Tensor copy;
    Rows rows;
    const void *data = nullptr;
    Type type = F32;

    Input() = default;
    Input(const View &x, int64_t dims) {
        STD_TORCH_CHECK(dims >= 1 && dims <= x.ndim(), "more normalised axes than the input has");
        type = x.type();
        data = x.data();
        if (merge(x, dims, rows)) return;
        copy = x.contiguous();
        merge(copy, dims, rows);
        data = copy.data();
    }
};

void same_shape(const View &a, const View &b) {
    bool same = a.ndim() == b.ndim();
    for (int64_t i = 0; same && i < a.ndim(); ++i) same = a.sizes()[i] == b.sizes()[i];
    STD_TORCH_CHECK(same, "shapes differ");
}

// A parameter in the compute dtype, as it multiplies: 1 + weight if that is what it means.
struct Parameter {
    std::vector<char> memory;
    const void *data = nullptr;

    Parameter(const View &t, const View &x, int64_t dims, Type compute, int64_t kind = 0) {
        if (!t) return;
        bool fits = t.ndim() == dims;
        int64_t n = 1;
        const int64_t *own = t.sizes(), *size = x.sizes() + x.ndim() - dims;
        for (int64_t a = 0; fits && a < dims; ++a) fits = own[a] == size[a], n *= size[a];
        STD_TORCH_CHECK(fits, "a parameter has another shape than the normalised axes");
        const Type type = t.type();
        const void *from = t.data();
        Tensor copy;
        if (!t.dense()) {
            copy = t.contiguous();
            from = copy.data();
        } else if (type == compute && !(kind & ZERO_CENTERED)) {
            data = from;
            return;
        }
        memory.resize(n * bytes(compute) + 1);
        data = memory.data();
        if (compute == F32 && type != F64 && rounded(kind) == F64) {
            auto *to = reinterpret_cast<float *>(memory.data());
            kernels().widened[type](from, to, n);
            for (int64_t j = 0; kind & ZERO_CENTERED && j < n; ++j) to[j] += 1;
            return;
        }
        for (int64_t j = 0; j < n; ++j) {
            double v = get(type, from, j);
            if (kind & ZERO_CENTERED) {
                v += 1;
                if (rounded(kind) != F64) { // added in the dtype of the weight, as a model that rounds would
                    double one = 0;
                    set(type, &one, 0, v);
                    v = get(type, &one, 0);
                }
            }
            set(compute, memory.data(), j, v);
        }
    }
};

bool aligned(const void *p, int64_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }

bool apart(const View &out, const View &in) {
    if (!in || in.numel() == 0) return true;
    int64_t last = 0;
    for (int64_t a = 0; a < in.ndim(); ++a) last += (in.sizes()[a] - 1) * in.strides()[a];
    const char *from = static_cast<const char *>(in.data()), *to = static_cast<const char *>(out.data());
    return to + out.numel() * bytes(out.type()) <= from || from + (last + 1) * bytes(in.type()) <= to;
}
// One tensor under two names: each number is read before its place is written.
bool same(const View &out, const View &in) {
    return in && out && in.data() == out.data() && in.type() == out.type() && in.dense();
}
void check_given(const View &out, const RowsCall &c, Type type) {
    same_shape(out, View(c.x));
    STD_TORCH_CHECK(out.type() == type && out.dense(), "out= has another dtype, or is not contiguous");
    for (const View in : {View(c.x), View(c.residual)})
        STD_TORCH_CHECK(same(out, in) || apart(out, in), "out= shares memory with an input");
    for (const View in : {View(c.weight), View(c.bias)})
        STD_TORCH_CHECK(apart(out, in), "out= shares memory with a parameter");
}

void *second(const View &stats) {
    return static_cast<char *>(stats.data()) + stats.sizes()[1] * bytes(stats.type());
}

// Rows of `dim` numbers from here on can be written past the cache.
bool streams(const void *to, int64_t dim, Type type) { return aligned(to, 64) && dim * bytes(type) % 64 == 0; }

template <class Call, class Run> const char *caught(const Call &call, Run run) {
    static thread_local std::string message;
    try {
        run(call);
        return nullptr;
    } catch (const std::exception &error) {
        message = error.what();
    }
    return message.c_str();
}

} // namespace

Type total_type(const View &x, const View &residual) {
    const Type type = x.type();
    return !residual || residual.type() == type ? type : F32;
}

void run(const RowsCall &c) {
    const View x(c.x), residual(c.residual), y(c.y), total(c.total), stats(c.stats);
    const Input in(x, c.dims);
    Input in_residual;
    RowsForward job;
    job.x_type = job.residual_type = job.total_type = in.type;
    if (residual) {
        same_shape(x, residual);
        in_residual = Input(residual, c.dims);
        job.residual_type = in_residual.type;
        job.total_type = total_type(x, residual);
    }
    const RowsForwardFn kernel = kernels().rows_forward(job.x_type, job.residual_type, c.kind & CENTER);
    STD_TORCH_CHECK(kernel, "no kernel for these dtypes");
    const int64_t n = in.rows.dim, rows = in.rows.count;
    const Type wide = compute(job.total_type);
    const Parameter weight(View(c.weight), x, c.dims, wide, c.kind), bias(View(c.bias), x, c.dims, wide);
    if (c.given) {
        check_given(y, c, in.type);
        if (residual) {
            check_given(total, c, job.total_type);
            STD_TORCH_CHECK(apart(y, total), "both out= share memory");
        }
    }
    job.mean = stats ? stats.data() : nullptr;
    job.rstd = stats ? second(stats) : nullptr;
    if (n == 0 && stats) std::memset(job.mean, 0, 2 * rows * bytes(wide)); // of nothing
    if (n == 0 || rows == 0) return;
    job.x = in.data;
    job.x_at = in.rows.at;
    job.residual = residual ? in_residual.data : nullptr;
    job.residual_at = in_residual.rows.at;
    job.total = residual ? total.data() : nullptr;
    job.y = y.data();
    job.weight = weight.data;
    job.bias = bias.data;
    job.dim = n;
    job.eps = c.eps;
    job.center = c.kind & CENTER;
    job.rounded = c.weight ? rounded(c.kind) : F64;
    job.y_is_x = !residual && job.y == job.x;
    job.total_is_term = residual && (job.total == job.x || job.total == job.residual);
    // Past the cache only into memory that is there: a fresh page is in the cache already. Nor in place.
    const bool large = c.given && rows * n * bytes(in.type) * 2 > last_level_cache() * 3 / 8;
    job.stream = large && !job.y_is_x && streams(job.y, n, in.type);
    job.stream_total = large && residual && !job.total_is_term && streams(job.total, n, job.total_type);
    if (!c.given && rows * n * bytes(in.type) >= LARGE) ask_for_large_pages(job.y, rows * n * bytes(in.type));
    if (!c.given && residual && rows * n * bytes(job.total_type) >= LARGE)
        ask_for_large_pages(job.total, rows * n * bytes(job.total_type));
    parallel(rows, n, [&](int64_t begin, int64_t end) { kernel(job, begin, end); });
}

void run(const RowsBackwardCall &c) {
    const View x(c.x), dy(c.dy), dtotal(c.dtotal), stats(c.stats), dx(c.dx), dweight(c.dweight), dbias(c.dbias);
    const Input in(x, c.dims), in_dy(dy, c.dims);
    Input in_dtotal;
    same_shape(x, dy);
    if (dtotal) {
        same_shape(x, dtotal);
        in_dtotal = Input(dtotal, c.dims);
        STD_TORCH_CHECK(in_dtotal.type == in.type, "the gradient of the sum has another dtype than the sum");
    }
    const int64_t n = in.rows.dim, rows = in.rows.count;
    const Type wide = compute(in.type);
    STD_TORCH_CHECK(stats.numel() == 2 * rows && stats.ndim() == 2 && stats.dense() && stats.type() == wide,
                    "not the statistics of this input");
    const RowsBackwardFn kernel = kernels().rows_backward(in_dy.type, in.type, c.kind & CENTER);
    STD_TORCH_CHECK(kernel, "no kernel for these dtypes");
    const Parameter weight(View(c.weight), x, c.dims, wide, c.kind);
    RowsBackward job;
    job.dy_type = in_dy.type;
    job.x_type = in.type;
    job.dy = in_dy.data;
    job.x = in.data;
    job.dtotal = in_dtotal.data;
    job.dx = dx ? dx.data() : nullptr;
    job.weight = weight.data;
    job.mean = stats.data();
    job.rstd = second(stats);
    job.dy_at = in_dy.rows.at;
    job.x_at = in.rows.at;
    job.dtotal_at = in_dtotal.rows.at;
    job.rows = rows;
    job.chunk_rows = row_chunk(rows);
    job.dim = n;
    job.eps = c.eps;
    job.center = c.kind & CENTER;
    job.rounded = c.weight ? rounded(c.kind) : F64;
    if (dx && rows * n * bytes(in.type) >= LARGE) ask_for_large_pages(job.dx, rows * n * bytes(in.type));
    const int64_t count = (rows + job.chunk_rows - 1) / job.chunk_rows;
    const bool need_dw = bool(dweight), need_db = bool(dbias);
    std::unique_ptr<double[]> partial(new double[count * n * (int(need_dw) + int(need_db)) + 1]); // not zeroed
    job.dweight = need_dw ? partial.get() : nullptr;
    job.dbias = need_db ? partial.get() + (need_dw ? count * n : 0) : nullptr;
    if (n > 0) parallel(count, job.chunk_rows * n, [&](int64_t begin, int64_t end) { kernel(job, begin, end); });

    auto sum = [&](const View &result, const double *parts) {
        void *data = result.data();
        const auto add = kernels().sum_chunks[result.type()];
        if (count == 0 && n > 0) std::memset(data, 0, n * bytes(result.type()));
        else parallel(n, count, [&](int64_t begin, int64_t end) { add(parts, count, n, begin, end, data); });
    };
    if (need_dw) sum(dweight, job.dweight);
    if (need_db) sum(dbias, job.dbias);
}

const char *rows_forward_of(const RowsCall &call) {
    return caught(call, [](const RowsCall &c) { run(c); });
}
const char *rows_backward_of(const RowsBackwardCall &call) {
    return caught(call, [](const RowsBackwardCall &c) { run(c); });
}

} // namespace normkit
