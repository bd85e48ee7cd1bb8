// The definitions in long double, one number after the other: for rows whose squares leave the range
// of the compute dtype, or that hold inf or NaN. Slow, rare, and right.
#include <cmath>
#include <vector>

#include "scalar.h"

namespace normkit {
namespace {

using Wide = long double;

struct Moments {
    Wide mean, rstd;
};

template <class At> Moments moments(At at, int64_t n, double eps, bool center) {
    Wide mean = 0, var = 0;
    if (center) { // about the first, so that equal numbers have that number as their mean
        for (int64_t j = 0; j < n; ++j) mean += at(j) - at(0);
        mean = at(0) + mean / n;
    }
    for (int64_t j = 0; j < n; ++j) {
        const Wide d = at(j) - mean;
        var += d * d;
    }
    var /= n;
    return {mean, 1 / std::sqrt(var + eps)};
}

Wide rounded_to(Type type, Wide v) {
    if (type == F64) return v;
    float f = 0;
    uint16_t half = 0;
    void *p = type == F32 ? static_cast<void *>(&f) : static_cast<void *>(&half);
    set(type, p, 0, double(v));
    return get(type, p, 0);
}

Type compute(Type type) { return type == F64 ? F64 : F32; }

} // namespace

void careful_row(const RowsForward &job, int64_t row) {
    const Type type = job.residual ? job.total_type : job.x_type, wide = compute(type);
    const int64_t n = job.dim, from = job.residual ? row * n : job.x_at.offset(row);
    const void *x = job.residual ? job.total : job.x;
    auto at = [&](int64_t j) -> Wide { return get(type, x, from + j); };
    const Moments m = moments(at, n, job.eps, job.center);
    if (job.mean) set(wide, job.mean, row, double(m.mean));
    if (job.rstd) set(wide, job.rstd, row, double(m.rstd));
    for (int64_t j = 0; j < n; ++j) {
        Wide y = (at(j) - m.mean) * m.rstd;
        if (job.weight) y = rounded_to(job.rounded, y) * get(wide, job.weight, j);
        if (job.bias) y += get(wide, job.bias, j);
        set(job.x_type, job.y, row * n + j, double(y));
    }
}

void careful_row(const RowsBackward &job, int64_t row, double *dweight, double *dbias) {
    const int64_t n = job.dim, x_from = job.x_at.offset(row), dy_from = job.dy_at.offset(row);
    const Type wide = compute(job.x_type);
    auto at = [&](int64_t j) -> Wide { return get(job.x_type, job.x, x_from + j); };
    const Moments m = moments(at, n, job.eps, job.center);
    auto x_hat = [&](int64_t j) { return (at(j) - m.mean) * m.rstd; };
    auto dy = [&](int64_t j) -> Wide { return get(job.dy_type, job.dy, dy_from + j); };
    auto g = [&](int64_t j) { return job.weight ? dy(j) * get(wide, job.weight, j) : dy(j); };
    Wide c1 = 0, c2 = 0;
    for (int64_t j = 0; j < n; ++j) {
        if (job.center) c1 += g(j) / n;
        c2 += g(j) * x_hat(j) / n;
    }
    for (int64_t j = 0; j < n; ++j) {
        Wide dx = (g(j) - c1 - x_hat(j) * c2) * m.rstd;
        if (job.dtotal) dx += get(job.x_type, job.dtotal, job.dtotal_at.offset(row) + j);
        if (job.dx) set(job.x_type, job.dx, row * n + j, double(dx));
        if (dweight) dweight[j] += double(dy(j) * rounded_to(job.rounded, x_hat(j)));
        if (dbias) dbias[j] += double(dy(j));
    }
}

void *scratch(int64_t bytes) {
    static thread_local std::vector<char> memory;
    if (int64_t(memory.size()) < bytes) memory.resize(bytes);
    return memory.data();
}

} // namespace normkit
