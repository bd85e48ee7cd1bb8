// The definitions in long double, one number after the other: for groups whose squares leave the range of the compute
// dtype, or that hold inf or NaN. Slow, rare, and right.
#include <cmath>
#include <vector>

#include "scalar.h"

namespace normkit {
namespace {

using Wide = long double;

struct Moments {
    Wide mean, rstd;
};

// Every number of a group that the mask leaves: body(where, channel, row).
template <class Body> void each(const Groups &job, int64_t group, Body body) {
    const Shape &s = job.shape;
    const int64_t k0 = group / s.k2, k2 = group % s.k2;
    for (int64_t r1 = 0; r1 < s.r1; ++r1)
        for (int64_t r3 = 0; r3 < s.r3; ++r3)
            for (int64_t i = 0; i < s.i; ++i) {
                const int64_t row = k0 * s.r1 + r1, channel = k2 * s.r3 + r3;
                if (!job.mask || job.mask[row * s.i + i]) body((row * s.channels() + channel) * s.i + i, channel, r1);
            }
}

Moments moments_of(const Groups &job, int64_t group, bool given, Wide &count) {
    Wide mean = 0, var = 0, first = 0;
    count = 0;
    each(job, group, [&](int64_t at, int64_t, int64_t) {
        if (count == 0) first = get(job.type, job.x, at);
        mean += get(job.type, job.x, at) - first;
        count += 1;
    });
    mean = job.center && count > 0 ? first + mean / count : 0;
    each(job, group, [&](int64_t at, int64_t, int64_t) {
        const Wide d = get(job.type, job.x, at) - mean;
        var += d * d;
    });
    if (count > 0) var /= count;
    if (given) {
        mean = job.stats.mean[group];
        var = job.stats.var[group];
    } else {
        job.stats.mean[group] = double(mean);
        job.stats.var[group] = double(var);
        job.stats.count[group] = double(count);
    }
    return {mean, 1 / std::sqrt(var + job.eps)};
}

} // namespace

void careful_forward(const Groups &job, bool given) {
    for (int64_t at = 0; job.mask && at < job.shape.numel(); ++at) set(job.type, job.y, at, 0);
    for (int64_t group = 0; group < job.shape.groups(); ++group) {
        Wide count;
        const Moments m = moments_of(job, group, given, count);
        each(job, group, [&](int64_t at, int64_t channel, int64_t row) {
            const int64_t k = job.weight_on_rows ? row : channel;
            Wide y = (get(job.type, job.x, at) - m.mean) * m.rstd;
            if (job.weight) y *= job.weight[k];
            if (job.bias) y += job.bias[k];
            set(job.type, job.y, at, double(y));
        });
    }
}

void careful_backward(const Groups &job, bool given, double *dweight, double *dbias) {
    for (int64_t at = 0; job.mask && at < job.shape.numel(); ++at) set(job.type, job.y, at, 0);
    const int64_t parameters = job.weight_on_rows ? job.shape.r1 : job.shape.channels();
    for (int64_t k = 0; k < parameters; ++k) {
        if (dweight) dweight[k] = 0;
        if (dbias) dbias[k] = 0;
    }
    for (int64_t group = 0; group < job.shape.groups(); ++group) {
        Wide count, c1 = 0, c2 = 0;
        const Moments m = moments_of(job, group, given, count);
        auto g = [&](int64_t at, int64_t k) { return (job.weight ? job.weight[k] : 1) * Wide(get(job.type, job.dy, at)); };
        auto x_hat = [&](int64_t at) { return (get(job.type, job.x, at) - m.mean) * m.rstd; };
        each(job, group, [&](int64_t at, int64_t channel, int64_t row) {
            const int64_t k = job.weight_on_rows ? row : channel;
            if (!given && job.center) c1 += g(at, k) / count;
            if (!given) c2 += g(at, k) * x_hat(at) / count;
            if (dweight) dweight[k] += double(get(job.type, job.dy, at) * x_hat(at));
            if (dbias) dbias[k] += get(job.type, job.dy, at);
        });
        each(job, group, [&](int64_t at, int64_t channel, int64_t row) {
            const int64_t k = job.weight_on_rows ? row : channel;
            set(job.type, job.y, at, double((g(at, k) - c1 - x_hat(at) * c2) * m.rstd));
        });
    }
}

void *scratch(int64_t bytes) {
    static thread_local std::vector<char> memory;
    if (int64_t(memory.size()) < bytes) memory.resize(bytes);
    return memory.data();
}

} // namespace normkit
