// Groups whose squares leave the range of the compute dtype: in double, one number after the other, scaled by a power
// of two so that the largest is about 1. Slow, rare, and right.
#include <cmath>
#include <limits>

#include "groups.h"
#include "scalar.h"
#include "tensor.h"

namespace normkit {
namespace {

// Every number of a group that the mask leaves: body(where, channel, row).
template <class Body> void each(const Groups &job, int64_t group, Body body) {
    const Shape &s = job.shape;
    const int64_t k0 = group / s.k2, first = group % s.k2 * s.r3;
    for (int64_t r1 = 0; r1 < s.r1; ++r1)
        for (int64_t channel = first; channel < first + s.r3; ++channel)
            for (int64_t i = 0; i < s.i; ++i) {
                const int64_t row = k0 * s.r1 + r1;
                if (!job.mask || job.mask[row * s.i + i]) body((row * s.channels() + channel) * s.i + i, channel, r1);
            }
}

// The largest magnitude; NaN where there is one, which no inf hides.
double peak(const Groups &job, int64_t group) {
    double most = 0;
    auto look = [&](double v) {
        if (!std::isnan(most) && !(v <= most)) most = v;
    };
    if (job.mask) {
        each(job, group, [&](int64_t at, int64_t, int64_t) { look(std::fabs(get(job.type, job.x, at))); });
        return most;
    }
    const Shape &s = job.shape;
    const int64_t run = s.r3 * s.i, bytes = job.type == F64 ? 8 : job.type == F32 ? 4 : 2;
    for (int64_t r1 = 0; r1 < s.r1 && !std::isnan(most); ++r1) {
        const int64_t at = ((group / s.k2 * s.r1 + r1) * s.k2 + group % s.k2) * run;
        look(kernels().peak[job.type](static_cast<const char *>(job.x) + at * bytes, run));
    }
    return most;
}

// x * scale has this mean and this 1 / sqrt(variance + eps).
struct Scaled {
    double scale, mean, var, rstd, count;
};
Scaled moments(const Groups &job, int64_t group, double largest) {
    int exponent;
    std::frexp(largest, &exponent);
    Scaled m = {std::ldexp(1.0, exponent < -1000 ? 1000 : -exponent), 0, 0, 0, 0};
    double first = 0, sum = 0;
    auto at = [&](int64_t k) { return get(job.type, job.x, k) * m.scale; };
    each(job, group, [&](int64_t k, int64_t, int64_t) {
        if (m.count == 0) first = at(k);
        sum += at(k) - first;
        m.count += 1;
    });
    if (job.center) m.mean = first + sum / m.count;
    each(job, group, [&](int64_t k, int64_t, int64_t) { m.var += (at(k) - m.mean) * (at(k) - m.mean); });
    m.var /= m.count;
    m.rstd = 1 / std::sqrt(m.var + job.eps * m.scale * m.scale);
    return m;
}

} // namespace

bool in_range(const Groups &job, double var) {
    return job.type == F64 ? var > 1e-290 && var < 1e300 : var > 1e-30 && var < 1e35;
}

bool careful_forward(const Groups &job, int64_t group, Careful &result) {
    const double largest = peak(job, group);
    if (!std::isfinite(largest)) {
        const bool zero = !job.center && std::isinf(largest); // 1 / inf
        job.mean[group] = job.center ? std::numeric_limits<double>::quiet_NaN() : 0;
        job.var[group] = zero ? largest : std::numeric_limits<double>::quiet_NaN();
        return false;
    }
    const Scaled m = moments(job, group, largest);
    job.mean[group] = m.mean / m.scale;
    job.var[group] = m.var / m.scale / m.scale;
    result.group = group;
    result.values.reserve(size_t(m.count));
    each(job, group, [&](int64_t at, int64_t channel, int64_t row) {
        double y = (get(job.type, job.x, at) * m.scale - m.mean) * m.rstd;
        y = y * job.weight[channel] + job.bias[channel];
        result.values.push_back(job.row_weight ? y * job.row_weight[row] + job.row_bias[row] : y);
    });
    return true;
}

// dweight: of each channel or r1, or null.
bool careful_backward(const Groups &job, int64_t group, Careful &result, double *dweight) {
    const double largest = peak(job, group);
    if (!std::isfinite(largest)) return false;
    const Scaled m = moments(job, group, largest);
    auto dy = [&](int64_t at) { return get(job.type, job.dy, at); };
    auto x_hat = [&](int64_t at) { return (get(job.type, job.x, at) * m.scale - m.mean) * m.rstd; };
    auto g = [&](int64_t at, int64_t channel, int64_t row) { return dy(at) * (job.row_weight ? job.row_weight[row] : job.weight[channel]); };
    double c1 = 0, c2 = 0;
    each(job, group, [&](int64_t at, int64_t channel, int64_t row) {
        if (job.center) c1 += g(at, channel, row) / m.count;
        c2 += g(at, channel, row) * x_hat(at) / m.count;
        if (dweight) dweight[job.row_weight ? row : channel] += dy(at) * x_hat(at);
    });
    result.group = group;
    result.values.reserve(size_t(m.count));
    each(job, group, [&](int64_t at, int64_t channel, int64_t row) {
        result.values.push_back((g(at, channel, row) - c1 - x_hat(at) * c2) * m.rstd * m.scale);
    });
    return true;
}

void put_back(const Groups &job, const Careful &result) {
    auto value = result.values.begin();
    each(job, result.group, [&](int64_t at, int64_t, int64_t) { set(job.type, job.y, at, *value++); });
}

} // namespace normkit
