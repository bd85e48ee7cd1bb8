// The operators over rows: check, allocate, share the rows out among threads.
#include <memory>
#include <vector>

#include "scalar.h"
#include "tensor.h"

namespace normkit {
namespace {

// What kind of norm: the bits of the operators' argument `kind`. Python holds the same table.
enum Kind : int64_t { CENTER = 1, ZERO_CENTERED = 2, ROUND_BF16 = 4, ROUND_F16 = 8 };

Type compute(Type type) { return type == F64 ? F64 : F32; }
int64_t bytes(Type type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }
Type rounded(int64_t kind) { return kind & ROUND_BF16 ? BF16 : kind & ROUND_F16 ? F16 : F64; }

// Rows are the last `dims` axes; merge what lies before them.
struct Rows {
    int64_t count = 1, dim = 1;
    Outer at;
};
bool merge(const Tensor &x, int64_t dims, Rows &rows) {
    const int64_t ndim = x.ndim(), *size = x.sizes(), *stride = x.strides();
    rows = Rows();
    for (int64_t a = ndim - dims; a < ndim; ++a) rows.dim *= size[a];
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
    return x.dense(ndim - dims);
}

// An input as rows: without a copy wherever the normalised axes are one block of memory.
struct Input {
    Tensor copy;
    Rows rows;
    const void *data = nullptr;
    Type type = F32;

    Input() = default;
    Input(const Tensor &x, int64_t dims) {
        STD_TORCH_CHECK(dims >= 1 && dims <= x.ndim(), "more normalised axes than the input has");
        type = x.type();
        if (merge(x, dims, rows)) {
            data = x.data();
            return;
        }
        copy = x.contiguous();
        merge(copy, dims, rows);
        data = copy.data();
    }
};

void same_shape(const Tensor &a, const Tensor &b) {
    bool same = a.ndim() == b.ndim();
    for (int64_t i = 0; same && i < a.ndim(); ++i) same = a.sizes()[i] == b.sizes()[i];
    STD_TORCH_CHECK(same, "shapes differ");
}

// A parameter in the compute dtype, as it multiplies: 1 + weight if that is what it means.
struct Parameter {
    std::vector<char> memory;
    const void *data = nullptr;

    Parameter(const Tensor &t, int64_t dims, int64_t n, Type compute, int64_t kind = 0) {
        if (!t) return;
        STD_TORCH_CHECK(t.numel() == n && t.ndim() == dims, "a parameter has another shape than the normalised axes");
        Tensor copy;
        if (!t.dense()) copy = t.contiguous();
        const Tensor &source = copy ? copy : t;
        const Type type = source.type();
        if (type == compute && !(kind & ZERO_CENTERED) && !copy) {
            data = source.data();
            return;
        }
        memory.resize(n * bytes(compute) + 1);
        data = memory.data();
        const void *from = source.data();
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

struct Forward {
    Tensor x, residual, weight, bias;
    int64_t dims, kind;
    double eps;
    Input in, in_residual;
    Type total_type;

    void read(Arguments &arguments, bool add) {
        x = arguments.tensor();
        if (add) residual = arguments.tensor();
        weight = arguments.optional_tensor();
        bias = arguments.optional_tensor();
        dims = arguments.integer();
        eps = arguments.number();
        kind = arguments.integer();
        in = Input(x, dims);
        total_type = in.type;
        if (add) {
            same_shape(x, residual);
            in_residual = Input(residual, dims);
            total_type = in_residual.type == in.type ? in.type : F32;
        }
    }

    void run(void *y, void *total, void *mean, void *rstd, bool into_ready) {
        const Type wide = compute(total_type);
        RowsForward job;
        job.x_type = in.type;
        job.residual_type = residual ? in_residual.type : in.type;
        job.total_type = total_type;
        const RowsForwardFn kernel =
            kernels().rows_forward(job.x_type, job.residual_type, kind & CENTER);
        STD_TORCH_CHECK(kernel, "no kernel for these dtypes");
        const int64_t n = in.rows.dim, rows = in.rows.count;
        if (n == 0 && mean) std::memset(mean, 0, 2 * rows * bytes(wide)); // of nothing; rstd lies behind it
        if (n == 0 || rows == 0) return;
        Parameter w(weight, dims, n, wide, kind), b(bias, dims, n, wide);
        job.x = in.data;
        job.x_at = in.rows.at;
        job.residual = residual ? in_residual.data : nullptr;
        job.residual_at = in_residual.rows.at;
        job.total = total;
        job.y = y;
        job.weight = w.data;
        job.bias = b.data;
        job.mean = mean;
        job.rstd = rstd;
        job.dim = n;
        job.eps = eps;
        job.center = kind & CENTER;
        job.rounded = weight ? rounded(kind) : F64;
        // Past the cache only into memory that is there: a fresh page is in the cache already.
        job.stream = into_ready && rows * n * (bytes(in.type) + bytes(in.type)) > last_level_cache() &&
                     aligned(y, 64) && n * bytes(in.type) % 64 == 0;
        parallel(rows, n, [&](int64_t begin, int64_t end) { kernel(job, begin, end); });
    }
};

// Two numbers a row, for the backward: mean (of a norm that centres) and 1 / standard deviation.
Tensor stats_for(const Forward &f) {
    const int64_t size[2] = {2, f.in.rows.count};
    return Tensor::empty(size, 2, compute(f.total_type));
}
void *second(const Tensor &stats) {
    return static_cast<char *>(stats.data()) + stats.sizes()[1] * bytes(stats.type());
}

// A kernel writes some numbers twice, and reads a row again after it has begun to write it.
bool apart(const Tensor &out, const Tensor &in) {
    if (!in || in.numel() == 0) return true;
    int64_t last = 0;
    for (int64_t a = 0; a < in.ndim(); ++a) last += (in.sizes()[a] - 1) * in.strides()[a];
    const char *from = static_cast<const char *>(in.data()), *to = static_cast<const char *>(out.data());
    return to + out.numel() * bytes(out.type()) <= from || from + (last + 1) * bytes(in.type()) <= to;
}
void into(const Tensor &out, const Forward &f, Type type) {
    same_shape(out, f.x);
    STD_TORCH_CHECK(out.type() == type && out.dense(), "out= has another dtype, or is not contiguous");
    STD_TORCH_CHECK(apart(out, f.x) && apart(out, f.residual) && apart(out, f.weight) && apart(out, f.bias),
                    "out= shares memory with an input");
}

} // namespace

void rows(StableIValue *stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Forward f;
    f.read(arguments, false);
    Tensor y = Tensor::like(f.x, f.in.type);
    f.run(y.data(), nullptr, nullptr, nullptr, false);
    stack[0] = returned(std::move(y));
}

void rows_train(StableIValue *stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Forward f;
    f.read(arguments, false);
    Tensor y = Tensor::like(f.x, f.in.type), stats = stats_for(f);
    f.run(y.data(), nullptr, stats.data(), second(stats), false);
    stack[0] = returned(std::move(y));
    stack[1] = returned(std::move(stats));
}

void rows_out(StableIValue *stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Forward f;
    f.read(arguments, false);
    Tensor y = arguments.tensor();
    into(y, f, f.in.type);
    f.run(y.data(), nullptr, nullptr, nullptr, true);
}

void rows_add(StableIValue *stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Forward f;
    f.read(arguments, true);
    Tensor y = Tensor::like(f.x, f.in.type), total = Tensor::like(f.x, f.total_type);
    f.run(y.data(), total.data(), nullptr, nullptr, false);
    stack[0] = returned(std::move(y));
    stack[1] = returned(std::move(total));
}

void rows_add_train(StableIValue *stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Forward f;
    f.read(arguments, true);
    Tensor y = Tensor::like(f.x, f.in.type), total = Tensor::like(f.x, f.total_type), stats = stats_for(f);
    f.run(y.data(), total.data(), stats.data(), second(stats), false);
    stack[0] = returned(std::move(y));
    stack[1] = returned(std::move(total));
    stack[2] = returned(std::move(stats));
}

void rows_add_out(StableIValue *stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Forward f;
    f.read(arguments, true);
    Tensor y = arguments.tensor(), total = arguments.tensor();
    into(y, f, f.in.type);
    into(total, f, f.total_type);
    STD_TORCH_CHECK(apart(y, total), "both out= share memory");
    f.run(y.data(), total.data(), nullptr, nullptr, true);
}

// (dy, x, weight?, bias?, stats, dtotal?, dims, eps, kind, need dx, dweight, dbias) -> (dx, dweight, dbias), those not
// needed empty.
void rows_backward(StableIValue *stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Tensor dy = arguments.tensor(), x = arguments.tensor(), weight = arguments.optional_tensor(),
           bias = arguments.optional_tensor(), stats = arguments.tensor(), dtotal = arguments.optional_tensor();
    const int64_t dims = arguments.integer();
    const double eps = arguments.number();
    const int64_t kind = arguments.integer();
    const bool need_dx = arguments.boolean(), need_dw = arguments.boolean(), need_db = arguments.boolean();

    Input in(x, dims), in_dy(dy, dims), in_dtotal;
    same_shape(x, dy);
    if (dtotal) {
        same_shape(x, dtotal);
        in_dtotal = Input(dtotal, dims);
        STD_TORCH_CHECK(in_dtotal.type == in.type, "the gradient of the sum has another dtype than the sum");
    }
    const int64_t n = in.rows.dim, rows = in.rows.count;
    const Type wide = compute(in.type);
    STD_TORCH_CHECK(stats.numel() == 2 * rows && stats.type() == wide, "not the statistics of this input");
    const RowsBackwardFn kernel = kernels().rows_backward(in_dy.type, in.type, kind & CENTER);
    STD_TORCH_CHECK(kernel, "no kernel for these dtypes");

    const int64_t none = 0, ndim = x.ndim();
    Tensor dx = need_dx ? Tensor::like(x, in.type) : Tensor::empty(&none, 1, in.type);
    auto parameter = [&](bool needed, const Tensor &of) {
        const Type type = of ? of.type() : wide;
        return needed ? Tensor::empty(x.sizes() + ndim - dims, dims, type) : Tensor::empty(&none, 1, type);
    };
    Tensor dw = parameter(need_dw, weight), db = parameter(need_db, bias);

    Parameter w(weight, dims, n, wide, kind);
    RowsBackward job;
    job.dy_type = in_dy.type;
    job.x_type = in.type;
    job.dy = in_dy.data;
    job.x = in.data;
    job.dtotal = in_dtotal.data;
    job.dx = need_dx ? dx.data() : nullptr;
    job.weight = w.data;
    job.mean = stats.data();
    job.rstd = second(stats);
    job.dy_at = in_dy.rows.at;
    job.x_at = in.rows.at;
    job.dtotal_at = in_dtotal.rows.at;
    job.rows = rows;
    job.chunk_rows = (rows + CHUNKS - 1) / CHUNKS < 32 ? 32 : (rows + CHUNKS - 1) / CHUNKS;
    job.dim = n;
    job.eps = eps;
    job.center = kind & CENTER;
    job.rounded = weight ? rounded(kind) : F64;
    const int64_t count = (rows + job.chunk_rows - 1) / job.chunk_rows;
    std::unique_ptr<double[]> partial(new double[count * n * (int(need_dw) + int(need_db)) + 1]); // not zeroed
    job.dweight = need_dw ? partial.get() : nullptr;
    job.dbias = need_db ? partial.get() + (need_dw ? count * n : 0) : nullptr;
    if (n > 0) parallel(count, job.chunk_rows * n, [&](int64_t begin, int64_t end) { kernel(job, begin, end); });

    auto sum = [&](const Tensor &result, const double *parts) {
        void *data = result.data();
        const auto add = kernels().sum_chunks[result.type()];
        if (count == 0 && n > 0) std::memset(data, 0, n * bytes(result.type()));
        else parallel(n, count, [&](int64_t begin, int64_t end) { add(parts, count, n, begin, end, data); });
    };
    if (need_dw) sum(dw, job.dweight);
    if (need_db) sum(db, job.dbias);
    stack[0] = returned(std::move(dx));
    stack[1] = returned(std::move(dw));
    stack[2] = returned(std::move(db));
}

} // namespace normkit
