// The operators over any other grouping: moments of parts, put together in double; then one pass that applies
// them. See Shape in kernels.h.
#include <cmath>
#include <vector>

#include "scalar.h"
#include "tensor.h"

namespace normkit {
namespace {

using Numbers = std::vector<double>;

Numbers numbers(const Tensor &t, int64_t n) {
    if (!t) return {};
    Tensor copy;
    if (!t.dense()) copy = t.contiguous();
    const Tensor &source = copy ? copy : t;
    STD_TORCH_CHECK(source.numel() == n, "a parameter has another size than the channels");
    Numbers values(n);
    const Type type = source.type();
    const void *data = source.data();
    for (int64_t k = 0; k < n; ++k) values[k] = get(type, data, k);
    return values;
}

// Coefficients of a pass, in the compute dtype.
struct Coefficients {
    std::vector<char> memory;
    Type type;
    Coefficients(int64_t n, Type compute) : memory(n * (compute == F64 ? 8 : 4) + 1), type(compute) {}
    double put(int64_t k, double v) { // what was kept of it
        if (type == F64) return reinterpret_cast<double *>(memory.data())[k] = v;
        return reinterpret_cast<float *>(memory.data())[k] = static_cast<float>(v);
    }
};

struct Call {
    Tensor x, dy, weight, bias, mask;
    Shape shape;
    Type type, wide;
    bool on_rows;
    Numbers weights, biases;
    Groups job{};

    bool spans() const { return shape.i > 1; }
    bool neighbours() const { return spans() && shape.r1 == 1 && !mask; }
    int64_t parameters() const { return on_rows ? shape.r1 : shape.channels(); }

    void read_shape(Arguments &a) { shape = {a.integer(), a.integer(), a.integer(), a.integer(), a.integer()}; }

    void prepare() {
        type = x.type();
        wide = type == F64 ? F64 : F32;
        STD_TORCH_CHECK(shape.numel() == x.numel(), "the five sizes are not those of the input");
        STD_TORCH_CHECK(!on_rows || !spans(), "a weight along r1 needs i == 1");
        if (mask) {
            int32_t code;
            check(aoti_torch_get_dtype(mask.handle(), &code));
            STD_TORCH_CHECK(code == aoti_torch_dtype_bool() && mask.dense() && mask.numel() == shape.positions(),
                            "a mask has one bool for each position, in one block of memory");
        }
        weights = numbers(weight, parameters());
        biases = numbers(bias, parameters());
        job.type = type;
        job.shape = shape;
        job.x = x.data();
        job.weight = weight ? weights.data() : nullptr;
        job.bias = bias ? biases.data() : nullptr;
        job.weight_on_rows = on_rows;
        job.mask = mask ? static_cast<const bool *>(mask.data()) : nullptr;
    }

    void use(const Tensor &stats) {
        auto *data = static_cast<double *>(stats.data());
        job.stats = {data, data + shape.groups(), data + 2 * shape.groups()};
    }

    // Is every variance one that the compute dtype can hold the squares of?
    bool ordinary() const {
        const double low = wide == F64 ? 1e-290 : 1e-30, high = wide == F64 ? 1e300 : 1e30;
        for (int64_t g = 0; g < shape.groups(); ++g) {
            const double v = job.stats.var[g] + job.eps, m = std::fabs(job.stats.mean[g]);
            if (job.stats.count[g] > 0 && !(v > low && v < high && m < std::sqrt(high) * 1e10)) return false;
        }
        return true;
    }

    int64_t pieces() const { // how many parts have sums of their own
        return spans() ? shape.k0 * shape.r1 * shape.channels() : shape.k0 * chunks(shape) * shape.channels();
    }
    void parts(GroupsFn span, GroupsFn column) const { // run a pass over the parts
        if (spans()) {
            parallel(pieces(), shape.i, [&](int64_t b, int64_t e) { span(job, b, e); });
        } else {
            const int64_t J = shape.channels(), tiles = (J + TILE - 1) / TILE;
            const int64_t tasks = shape.k0 * chunks(shape) * tiles;
            parallel(tasks, least(chunk_rows(shape), shape.r1) * least(J, TILE),
                     [&](int64_t b, int64_t e) { column(job, b, e); });
        }
    }
    void whole(GroupsFn span, GroupsFn column) const { // run a pass over everything
        if (spans())
            parallel(pieces(), shape.i, [&](int64_t b, int64_t e) { span(job, b, e); });
        else
            parallel(shape.k0 * shape.r1, shape.channels(), [&](int64_t b, int64_t e) { column(job, b, e); });
    }

    // Every part of a group: body(part, count's index).
    template <class Body> void each_part(int64_t group, Body body) const {
        const int64_t k0 = group / shape.k2, k2 = group % shape.k2, J = shape.channels();
        const int64_t rows = spans() ? shape.r1 : chunks(shape);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t r3 = 0; r3 < shape.r3; ++r3) {
                const int64_t row = k0 * rows + r, channel = k2 * shape.r3 + r3, part = row * J + channel;
                body(part, spans() ? part : row, channel);
            }
    }

    // Moments of the groups from those of their parts: Chan, Golub & LeVeque 1979.
    void moments() {
        const bool s = spans();
        Numbers mean(pieces()), m2(pieces()), count(s ? pieces() : shape.k0 * chunks(shape));
        job.part_mean = mean.data();
        job.part_m2 = m2.data();
        job.part_count = count.data();
        parts(kernels().span_moments[type], kernels().column_moments[type]);
        parallel(shape.groups(), pieces() / (shape.groups() ? shape.groups() : 1), [&](int64_t b, int64_t e) {
            for (int64_t g = b; g < e; ++g) {
                double n = 0, sum = 0, square = 0, first = 0;
                each_part(g, [&](int64_t p, int64_t c, int64_t) {
                    if (n == 0) first = mean[p];
                    n += count[c];
                    sum += count[c] * (mean[p] - first);
                });
                const double about = n > 0 ? first + sum / n : 0;
                each_part(g, [&](int64_t p, int64_t c, int64_t) {
                    const double d = mean[p] - about;
                    square += m2[p] + count[c] * d * d;
                });
                double var = n > 0 ? square / n : 0;
                if (!job.center) var += about * about; // the second moment about 0
                job.stats.mean[g] = job.center ? about : 0;
                job.stats.var[g] = var;
                job.stats.count[g] = n;
            }
        });
    }

    void forward(void *y, bool given) {
        job.y = y;
        if (x.numel() == 0) {
            for (int64_t g = 0; g < shape.groups() && !given; ++g)
                job.stats.mean[g] = job.stats.var[g] = job.stats.count[g] = 0;
            return;
        }
        const bool at_once = neighbours() && !given;
        if (at_once)
            parallel(shape.groups(), shape.r3 * shape.i,
                     [&](int64_t b, int64_t e) { kernels().group_forward[type](job, b, e); });
        else if (!given)
            moments();
        if (!ordinary()) {
            careful_forward(job, given);
            return;
        }
        if (at_once) return;
        const int64_t J = shape.channels(), n = shape.k0 * J;
        Coefficients hi(n, wide), p(n, wide), q(n, wide);
        for (int64_t group = 0; group < shape.groups(); ++group) {
            const double mean = job.stats.mean[group], rstd = 1 / std::sqrt(job.stats.var[group] + job.eps);
            for (int64_t r3 = 0; r3 < shape.r3; ++r3) {
                const int64_t channel = group % shape.k2 * shape.r3 + r3, k = group / shape.k2 * J + channel;
                const double scale = weight && !on_rows ? rstd * weights[channel] : rstd, lo = mean - hi.put(k, mean);
                p.put(k, scale);
                q.put(k, (bias && !on_rows ? biases[channel] : 0) - lo * scale);
            }
        }
        job.hi = hi.memory.data();
        job.p = p.memory.data();
        job.q = q.memory.data();
        whole(kernels().span_apply[type], kernels().column_apply[type]);
    }

    // With g = dy * weight, sums over a group, and d = x - mean:
    //   dx = rstd * (g - sum(g) / n - d * rstd² * sum(g * d) / n)
    //      = dy * p + q + d * t
    // where statistics are given, they are constants, and dx = rstd * g.
    void backward(void *dx, Numbers *dweight, Numbers *dbias, bool given) {
        job.y = dx;
        job.dy = dy.data();
        if (x.numel() == 0) return;
        if (!ordinary()) {
            careful_backward(job, given, dweight ? dweight->data() : nullptr,
                             dbias ? dbias->data() : nullptr);
            return;
        }
        const int64_t J = shape.channels(), n = shape.k0 * J, rows = shape.k0 * shape.r1;
        Numbers a, b, channel_w(J, 0), channel_b(J, 0);
        if (neighbours() && !given) {
            a.resize(n);
            b.resize(n);
            job.part_a = a.data();
            job.part_b = b.data();
            parallel(shape.groups(), shape.r3 * shape.i,
                     [&](int64_t b, int64_t e) { kernels().group_backward[type](job, b, e); });
            for (int64_t k = 0; k < n; ++k) channel_b[k % J] += a[k], channel_w[k % J] += b[k];
            if (dweight) *dweight = channel_w;
            if (dbias) *dbias = channel_b;
            return;
        }
        Coefficients hi(n, wide), p(n, wide), q(n, wide), t(n, wide), s(on_rows ? n : 0, wide);
        Numbers rstd(shape.groups()), lo(shape.groups());
        for (int64_t g = 0; g < shape.groups(); ++g) {
            rstd[g] = 1 / std::sqrt(job.stats.var[g] + job.eps);
            for (int64_t r3 = 0; r3 < shape.r3; ++r3)
                lo[g] = job.stats.mean[g] -
                        hi.put(g / shape.k2 * J + g % shape.k2 * shape.r3 + r3, job.stats.mean[g]);
        }
        job.hi = hi.memory.data();
        Numbers row_a(on_rows ? rows : 0), row_b(on_rows ? rows : 0);
        job.row_a = row_a.data();
        job.row_b = row_b.data();
        if (!given || (!on_rows && (dweight || dbias))) {
            a.resize(pieces());
            b.resize(pieces());
            job.part_a = a.data();
            job.part_b = b.data();
            // With given statistics dx needs no sums, and is written in the same pass.
            job.y = given && !mask ? dx : nullptr;
            if (job.y)
                for (int64_t k = 0; k < n; ++k) {
                    const double r = rstd[k / J * shape.k2 + k % J / shape.r3];
                    p.put(k, weight ? r * weights[k % J] : r);
                }
            job.p = p.memory.data();
            parts(kernels().span_sums[type], kernels().column_sums[type]);
            job.y = job.y ? nullptr : dx;
        }
        for (int64_t g = 0; g < shape.groups(); ++g) {
            const double r = rstd[g], count = job.stats.count[g];
            double sum_g = 0, sum_gd = 0;
            if (!a.empty())
                each_part(g, [&](int64_t part, int64_t, int64_t channel) {
                    const double w = weight && !on_rows ? weights[channel] : 1, gd = b[part] - lo[g] * a[part];
                    sum_g += w * a[part];
                    sum_gd += w * gd;
                    channel_b[channel] += a[part];
                    channel_w[channel] += r * gd;
                });
            const bool apart = !given && count > 0;
            const double c1 = apart && job.center ? sum_g / count : 0, slope = apart ? -r * r * r * sum_gd / count : 0;
            for (int64_t r3 = 0; r3 < shape.r3; ++r3) {
                const int64_t channel = g % shape.k2 * shape.r3 + r3, k = g / shape.k2 * J + channel;
                p.put(k, weight && !on_rows ? r * weights[channel] : r);
                q.put(k, -r * c1 - lo[g] * slope);
                t.put(k, slope);
                if (on_rows) s.put(k, -lo[g] * r);
            }
        }
        job.p = p.memory.data();
        job.q = q.memory.data();
        job.t = t.memory.data();
        job.s = s.memory.data();
        if (job.y) whole(kernels().span_gradient[type], kernels().column_gradient[type]);
        for (int64_t k = 0; on_rows && k < rows; ++k) {
            if (dweight) (*dweight)[k % shape.r1] += row_b[k];
            if (dbias) (*dbias)[k % shape.r1] += row_a[k];
        }
        if (!on_rows && dweight) *dweight = channel_w;
        if (!on_rows && dbias) *dbias = channel_b;
    }
};

// (x, k0, r1, k2, r3, i, weight?, bias?, weight on rows, mask?, given mean?, given variance?, eps, center)
struct Forward : Call {
    Tensor stats;
    bool given = false;

    void read(Arguments &a) {
        x = a.tensor();
        read_shape(a);
        weight = a.optional_tensor();
        bias = a.optional_tensor();
        on_rows = a.boolean();
        mask = a.optional_tensor();
        Tensor mean = a.optional_tensor(), var = a.optional_tensor();
        job.eps = a.number();
        job.center = a.boolean();
        prepare();
        const int64_t size[2] = {3, shape.groups()};
        stats = Tensor::empty(size, 2, F64);
        use(stats);
        given = bool(mean);
        if (!given) return;
        STD_TORCH_CHECK(var, "a mean needs a variance");
        const Numbers means = numbers(mean, shape.k2), vars = numbers(var, shape.k2);
        for (int64_t g = 0; g < shape.groups(); ++g) {
            job.stats.mean[g] = means[g % shape.k2];
            job.stats.var[g] = vars[g % shape.k2];
            job.stats.count[g] = 1;
        }
    }
};

// A tensor with the sizes and strides of x: dense, in any order of its axes.
Tensor alike(const Tensor &x, Type type) {
    AtenTensorHandle handle;
    check(aoti_torch_empty_strided(x.ndim(), x.sizes(), x.strides(), torch_dtype(type), aoti_torch_device_type_cpu(),
                                   0, &handle));
    Tensor result(handle);
    result.advise();
    return result;
}

} // namespace

void groups(StableIValue *stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Forward f;
    f.read(arguments);
    Tensor y = alike(f.x, f.type);
    f.forward(y.data(), f.given);
    stack[0] = returned(std::move(y));
    stack[1] = returned(std::move(f.stats));
}

void groups_out(StableIValue *stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    Forward f;
    f.read(arguments);
    Tensor y = arguments.tensor();
    bool same = y.type() == f.type && y.ndim() == f.x.ndim();
    for (int64_t a = 0; same && a < y.ndim(); ++a)
        same = y.sizes()[a] == f.x.sizes()[a] && (y.sizes()[a] == 1 || y.strides()[a] == f.x.strides()[a]);
    STD_TORCH_CHECK(same, "out= has another dtype, shape or memory layout than the input");
    f.forward(y.data(), f.given);
    stack[0] = returned(std::move(f.stats));
}

// (dy, x, k0, r1, k2, r3, i, weight?, bias?, weight on rows, mask?, statistics, given, eps, center, need dweight,
// dbias) -> (dx, dweight, dbias), those not needed empty.
void groups_backward(StableIValue *stack, uint64_t, uint64_t) {
    Arguments a(stack);
    Call call;
    call.dy = a.tensor();
    call.x = a.tensor();
    call.read_shape(a);
    call.weight = a.optional_tensor();
    const Tensor bias = a.optional_tensor(); // for its dtype alone
    call.on_rows = a.boolean();
    call.mask = a.optional_tensor();
    Tensor stats = a.tensor();
    const bool given = a.boolean();
    call.job.eps = a.number();
    call.job.center = a.boolean();
    const bool need_dw = a.boolean(), need_db = a.boolean();
    call.prepare();
    STD_TORCH_CHECK(stats.type() == F64 && stats.numel() == 3 * call.shape.groups(), "not the statistics of this input");
    STD_TORCH_CHECK(call.dy.type() == call.type && call.dy.numel() == call.x.numel(), "dy differs from x");
    call.use(stats);
    const int64_t n = call.parameters();
    Numbers dweight(n, 0), dbias(n, 0);
    Tensor dx = alike(call.x, call.type);
    call.backward(dx.data(), need_dw ? &dweight : nullptr, need_db ? &dbias : nullptr, given);
    auto result = [&](bool needed, const Tensor &of, const Numbers &values) {
        const Type type = of ? of.type() : call.wide;
        Tensor t = Tensor::vector(needed ? n : 0, type);
        void *data = t.data();
        for (int64_t k = 0; needed && k < n; ++k) set(type, data, k, values[k]);
        return t;
    };
    Tensor dw = result(need_dw, call.weight, dweight), db = result(need_db, bias, dbias);
    stack[0] = returned(std::move(dx));
    stack[1] = returned(std::move(dw));
    stack[2] = returned(std::move(db));
}

// (running mean, running variance, statistics, momentum): move both towards those of a batch, where it has values
// enough. Channels of several instances (k0 > 1) have been averaged before.
void update_running(StableIValue *stack, uint64_t, uint64_t) {
    Arguments a(stack);
    Tensor mean = a.tensor(), var = a.tensor(), stats = a.tensor();
    const double momentum = a.number();
    const int64_t n = mean.numel();
    STD_TORCH_CHECK(mean.dense() && var.dense() && var.numel() == n && stats.numel() == 3 * n && stats.type() == F64,
                    "running statistics have one number a channel");
    const auto *data = static_cast<const double *>(stats.data());
    const Type mean_type = mean.type(), var_type = var.type();
    void *m = mean.data(), *v = var.data();
    for (int64_t k = 0; k < n; ++k) {
        const double count = data[2 * n + k];
        if (count > 0) set(mean_type, m, k, (1 - momentum) * get(mean_type, m, k) + momentum * data[k]);
        if (count > 1)
            set(var_type, v, k, (1 - momentum) * get(var_type, v, k) + momentum * data[n + k] * count / (count - 1));
    }
}

} // namespace normkit
