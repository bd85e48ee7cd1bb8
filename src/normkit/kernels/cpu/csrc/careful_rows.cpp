// A row whose squares leave the range of its compute dtype, one number after the other: slow, rare, and right. In
// double, of numbers times a power of two that brings them close to 1:
//
//   d = scale * x - mean      rstd = 1 / sqrt(mean(d²) + scale² * eps)      x_hat = d * rstd
#include <cmath>
#include <limits>

#include "scalar.h"

namespace normkit {
namespace {

struct Row {
    Type type;
    const void *x;
    int64_t from, n;
    int power = 0; // scale = 2^power
    double mean = 0, rstd = 0;

    double operator[](int64_t j) const { return std::ldexp(get(type, x, from + j), power); }
    double x_hat(int64_t j) const { return ((*this)[j] - mean) * rstd; }
    // In the units of x.
    double true_mean() const { return std::ldexp(mean, -power); }
    double true_rstd() const { return std::ldexp(rstd, power); }

    Row(Type type, const void *x, int64_t from, int64_t n, double eps, bool center) : type(type), x(x), from(from), n(n) {
        double largest = eps > 0 ? std::sqrt(eps) : 0;
        for (int64_t j = 0; j < n; ++j) largest = std::fmax(largest, std::fabs(get(type, x, from + j)));
        if (largest > 0) power = -std::ilogb(largest);
        const Row &d = *this;
        double sum = 0, var = 0;
        if (center) { // about the first, so that equal numbers have that number as their mean
            for (int64_t j = 0; j < n; ++j) sum += d[j] - d[0];
            mean = d[0] + sum / n;
        }
        for (int64_t j = 0; j < n; ++j) var += (d[j] - mean) * (d[j] - mean);
        // Should nothing be left of eps, a row of equal numbers must still give 0.
        constexpr double least = std::numeric_limits<double>::min();
        const double scaled = std::ldexp(eps, 2 * power);
        rstd = 1 / std::sqrt(var / n + (eps > 0 && scaled < least ? least : scaled));
    }
};

double rounded_to(Type type, double v) {
    if (type == F64) return v;
    float f = 0;
    uint16_t half = 0;
    void *p = type == F32 ? static_cast<void *>(&f) : static_cast<void *>(&half);
    set(type, p, 0, v);
    return get(type, p, 0);
}

Type compute(Type type) { return type == F64 ? F64 : F32; }

} // namespace

void careful_row(const RowsForward &job, int64_t row) {
    const Type type = job.residual ? job.total_type : job.x_type, wide = compute(type);
    const int64_t n = job.dim, from = job.residual ? row * n : job.x_at.offset(row);
    const Row x(type, job.residual ? job.total : job.x, from, n, job.eps, job.center);
    if (job.mean) set(wide, job.mean, row, x.true_mean());
    if (job.rstd) set(wide, job.rstd, row, x.true_rstd());
    for (int64_t j = 0; j < n; ++j) {
        double y = x.x_hat(j);
        if (job.weight) y = rounded_to(job.rounded, y) * get(wide, job.weight, j);
        if (job.bias) y += get(wide, job.bias, j);
        set(job.x_type, job.y, row * n + j, y);
    }
}

void careful_row(const RowsBackward &job, int64_t row, double *dweight, double *dbias) {
    const int64_t n = job.dim, dy_from = job.dy_at.offset(row);
    const Type wide = compute(job.x_type);
    const Row x(job.x_type, job.x, job.x_at.offset(row), n, job.eps, job.center);
    auto dy = [&](int64_t j) { return get(job.dy_type, job.dy, dy_from + j); };
    auto g = [&](int64_t j) { return job.weight ? dy(j) * get(wide, job.weight, j) : dy(j); };
    double c1 = 0, c2 = 0;
    for (int64_t j = 0; j < n; ++j) {
        if (job.center) c1 += g(j) / n;
        c2 += g(j) * x.x_hat(j) / n;
    }
    for (int64_t j = 0; j < n; ++j) {
        double dx = std::ldexp((g(j) - c1 - x.x_hat(j) * c2) * x.rstd, x.power);
        if (job.dtotal) dx += get(job.x_type, job.dtotal, job.dtotal_at.offset(row) + j);
        if (job.dx) set(job.x_type, job.dx, row * n + j, dx);
        if (dweight) dweight[j] += dy(j) * rounded_to(job.rounded, x.x_hat(j));
        if (dbias) dbias[j] += dy(j);
    }
}

} // namespace normkit
