// The operators over any grouping but that of the last axes: read, check, allocate. See Shape in kernels.h.
#include <algorithm>

#include "groups.h"
#include "scalar.h"
#include "tensor.h"

namespace normkit {
namespace {

// Freed storage leaves sizes without numbers.
void *numbers_of(const Tensor &t, const char *name) {
    void *data = t.data();
    STD_TORCH_CHECK(data || t.numel() == 0, name, " has no storage: it was freed");
    return data;
}

// Do the axes fill one block of memory, in any order? The strides of axes of size 1 are free.
bool fills_memory(const Tensor &t) {
    const int64_t n = t.ndim(), *size = t.sizes(), *stride = t.strides();
    if (t.numel() == 0) return true;
    int64_t axes[64], count = 0, step = 1;
    for (int64_t a = 0; a < n; ++a)
        if (size[a] != 1) axes[count++] = a;
    std::sort(axes, axes + count, [&](int64_t a, int64_t b) { return stride[a] < stride[b]; });
    for (int64_t k = 0; k < count; ++k) {
        if (stride[axes[k]] != step) return false;
        step *= size[axes[k]];
    }
    return true;
}
bool same_layout(const Tensor &t, const Tensor &x) {
    bool same = t.type() == x.type() && t.ndim() == x.ndim();
    for (int64_t a = 0; same && a < x.ndim(); ++a)
        same = t.sizes()[a] == x.sizes()[a] && (x.sizes()[a] == 1 || x.numel() == 0 || t.strides()[a] == x.strides()[a]);
    return same;
}
bool overlap(const Tensor &a, int64_t a_bytes, const Tensor &b, int64_t b_bytes) {
    if (!a || !b || a.numel() == 0 || b.numel() == 0) return false;
    auto end = [](const Tensor &t, int64_t bytes) {
        int64_t last = 0;
        for (int64_t k = 0; k < t.ndim(); ++k) last += (t.sizes()[k] - 1) * t.strides()[k];
        return static_cast<const char *>(t.data()) + (last + 1) * bytes;
    };
    return a.data() < end(b, b_bytes) && b.data() < end(a, a_bytes);
}

// A parameter in double; `otherwise` where there is none.
struct Parameter : Doubles {
    Parameter(const Tensor &t, int64_t n, const char *name, double otherwise = 0) : Doubles(n) {
        if (!t) {
            std::fill(data, data + n, otherwise);
            return;
        }
        const void *own = numbers_of(t, name);
        STD_TORCH_CHECK(t.numel() == n, name, " has ", t.numel(), " numbers where ", n, " are needed");
        Tensor copy;
        if (!t.dense()) own = (copy = t.contiguous()).data();
        const Type type = t.type();
        for (int64_t k = 0; k < n; ++k) data[k] = get(type, own, k);
    }
};

struct Call {
    Tensor x, weight, bias, mask;
    Shape shape;
    bool on_rows = false;

    int64_t parameters() const { return on_rows ? shape.r1 : shape.channels(); }
    void read_shape(Arguments &a) { shape = {a.integer(), a.integer(), a.integer(), a.integer(), a.integer()}; }

    // Before anything that reads memory.
    void check_input(Groups &job) const {
        job.type = x.type();
        job.shape = shape;
        job.x = numbers_of(x, "the input");
        STD_TORCH_CHECK(std::min({shape.k0, shape.r1, shape.k2, shape.r3, shape.i}) >= 0 && shape.numel() == x.numel(),
                        "the five sizes are not those of the input");
        STD_TORCH_CHECK(fills_memory(x), "the input is not one block of memory");
        STD_TORCH_CHECK(!on_rows || (shape.i == 1 && shape.r3 == 1), "a weight along r1 needs r3 == i == 1");
        if (!mask) return;
        int32_t code;
        check(aoti_torch_get_dtype(mask.handle(), &code));
        STD_TORCH_CHECK(code == aoti_torch_dtype_bool() && mask.dense() && mask.numel() == shape.positions(),
                        "a mask has one bool for each position, in one block of memory");
        job.mask = static_cast<const bool *>(numbers_of(mask, "the mask"));
    }
};

// What the parameters are to the passes: along the channels, or along r1.
struct Parameters {
    Parameter weight, bias, one, zero;
    Parameters(const Call &c, const Tensor &w, const Tensor &b)
        : weight(w, c.parameters(), "the weight", 1), bias(b, c.parameters(), "the bias"),
          one(Tensor(), c.on_rows ? c.shape.channels() : 0, "", 1), zero(Tensor(), c.on_rows ? c.shape.channels() : 0, "") {}
    void give(Groups &job, bool on_rows) const {
        job.weight = on_rows ? one.data : weight.data;
        job.bias = on_rows ? zero.data : bias.data;
        job.row_weight = on_rows ? weight.data : nullptr;
        job.row_bias = on_rows ? bias.data : nullptr;
    }
};

void use_stats(Groups &job, const Tensor &stats) {
    job.mean = static_cast<double *>(stats.data());
    job.var = job.mean + job.shape.groups();
    job.count = job.var + job.shape.groups();
}

// A tensor with the sizes and strides of x: dense, in any order of its axes.
Tensor alike(const Tensor &x, Type type) {
    AtenTensorHandle handle;
    check(aoti_torch_empty_strided(x.ndim(), x.sizes(), x.strides(), torch_dtype(type), aoti_torch_device_type_cpu(),
                                   0, &handle));
    Tensor result(handle);
    result.advise();
    return result;
}

// (x, k0, r1, k2, r3, i, weight?, bias?, weight on rows, mask?, given mean?, given variance?, eps, center)
struct Forward : Call {
    Tensor mean, var;
    double eps;
    bool center;

    explicit Forward(Arguments &a) {
        x = a.tensor();
        read_shape(a);
        weight = a.optional_tensor();
        bias = a.optional_tensor();
        on_rows = a.boolean();
        mask = a.optional_tensor();
        mean = a.optional_tensor();
        var = a.optional_tensor();
        eps = a.number();
        center = a.boolean();
    }

    void check_out(const Tensor &y) const {
        numbers_of(y, "out=");
        STD_TORCH_CHECK(same_layout(y, x), "out= has another dtype, shape or memory layout than the input");
        const int64_t size = bytes(x.type());
        bool apart = y.data() == x.data() || !overlap(y, size, x, size);
        for (const Tensor *t : {&weight, &bias, &mean, &var}) apart = apart && !(*t && overlap(y, size, *t, bytes(t->type())));
        STD_TORCH_CHECK(apart && !overlap(y, size, mask, 1), "out= shares memory with an input, and is not the input itself");
    }

    // The statistics; `into`: where to write y, or none yet, and it is made.
    Tensor run(Tensor &y) const {
        Groups job = {};
        check_input(job);
        if (y) check_out(y);
        const bool given = bool(mean);
        STD_TORCH_CHECK(given == bool(var), "a given mean needs a given variance");
        const Parameters parameters(*this, weight, bias);
        parameters.give(job, on_rows);
        job.eps = eps;
        job.center = center;
        const Parameter means(mean, given ? shape.k2 : 0, "the mean"), vars(var, given ? shape.k2 : 0, "the variance");
        const int64_t size[2] = {3, shape.groups()};
        Tensor stats = Tensor::empty(size, 2, F64);
        use_stats(job, stats);
        for (int64_t g = 0; g < shape.groups() && (given || x.numel() == 0); ++g) {
            job.mean[g] = given ? means.data[g % shape.k2] : 0;
            job.var[g] = given ? vars.data[g % shape.k2] : 0;
            job.count[g] = given ? 1 : 0;
        }
        if (!y) y = alike(x, job.type);
        job.y = y.data();
        if (x.numel() > 0) run_forward(job, given);
        return stats;
    }
};

} // namespace

void groups(StableIValue *stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    const Forward f(arguments);
    Tensor y, stats = f.run(y);
    stack[0] = returned(std::move(y));
    stack[1] = returned(std::move(stats));
}

void groups_out(StableIValue *stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    const Forward f(arguments);
    Tensor y = arguments.tensor();
    stack[0] = returned(f.run(y));
}

// (dy, x, k0, r1, k2, r3, i, weight?, bias?, weight on rows, mask?, statistics, given, eps, center, need dweight,
// dbias) -> (dx, dweight, dbias), those not needed empty.
void groups_backward(StableIValue *stack, uint64_t, uint64_t) {
    Arguments a(stack);
    Call call;
    const Tensor dy = a.tensor();
    call.x = a.tensor();
    call.read_shape(a);
    call.weight = a.optional_tensor();
    call.bias = a.optional_tensor(); // for its dtype alone
    call.on_rows = a.boolean();
    call.mask = a.optional_tensor();
    const Tensor stats = a.tensor();
    const bool given = a.boolean();
    Groups job = {};
    job.eps = a.number();
    job.center = a.boolean();
    const bool needed[2] = {a.boolean(), a.boolean()};
    call.check_input(job);
    job.dy = numbers_of(dy, "dy");
    STD_TORCH_CHECK(same_layout(dy, call.x), "dy has another dtype, shape or memory layout than the input");
    numbers_of(stats, "the statistics");
    STD_TORCH_CHECK(stats.type() == F64 && stats.dense() && stats.numel() == 3 * call.shape.groups(), "not the statistics of this input");
    const Parameters parameters(call, call.weight, Tensor());
    parameters.give(job, call.on_rows);
    use_stats(job, stats);
    Tensor dx = alike(call.x, job.type);
    job.y = dx.data();
    const bool empty = call.x.numel() == 0;
    const int64_t n = call.parameters(), rows = empty ? 0 : part_rows(job, given);
    const Doubles dweight(needed[0] ? rows * n : 0), dbias(needed[1] ? rows * n : 0);
    if (!empty) run_backward(job, given, needed[0] ? dweight.data : nullptr, needed[1] ? dbias.data : nullptr);
    auto result = [&](bool need, const Tensor &of, const double *parts) {
        const Type type = of ? of.type() : job.type == F64 ? F64 : F32;
        Tensor t = Tensor::vector(need ? n : 0, type);
        for (int64_t k = 0; need && empty && k < n; ++k) set(type, t.data(), k, 0);
        if (need && !empty && n > 0)
            parallel(n, rows, [&](int64_t begin, int64_t end) { kernels().sum_chunks[type](parts, rows, n, begin, end, t.data()); });
        return t;
    };
    Tensor dw = result(needed[0], call.weight, dweight.data), db = result(needed[1], call.bias, dbias.data);
    stack[0] = returned(std::move(dx));
    stack[1] = returned(std::move(dw));
    stack[2] = returned(std::move(db));
}

// (running mean, running variance, statistics, momentum): move both towards those of a batch, where it has values
// enough. Channels of several instances (k0 > 1) have been averaged before.
void update_running(StableIValue *stack, uint64_t, uint64_t) {
    Arguments a(stack);
    const Tensor mean = a.tensor(), var = a.tensor(), stats = a.tensor();
    const double momentum = a.number();
    const int64_t n = mean.numel();
    STD_TORCH_CHECK(mean.dense() && var.dense() && stats.dense() && var.numel() == n && stats.numel() == 3 * n && stats.type() == F64,
                    "running statistics have one number a channel");
    void *m = numbers_of(mean, "the running mean"), *v = numbers_of(var, "the running variance");
    const auto *data = static_cast<const double *>(numbers_of(stats, "the statistics"));
    const Type mean_type = mean.type(), var_type = var.type();
    for (int64_t k = 0; k < n; ++k) {
        const double count = data[2 * n + k];
        if (count > 0) set(mean_type, m, k, (1 - momentum) * get(mean_type, m, k) + momentum * data[k]);
        if (count > 1)
            set(var_type, v, k, (1 - momentum) * get(var_type, v, k) + momentum * data[n + k] * count / (count - 1));
    }
}

} // namespace normkit
