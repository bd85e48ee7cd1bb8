// The passes over groups, and what is done by hand where they would overflow.
#pragma once

#include <vector>

#include "kernels.h"

namespace normkit {

// Memory that nobody clears.
struct Doubles {
    double *data = nullptr;
    explicit Doubles(int64_t n) : data(new double[n > 0 ? n : 1]) {}
    Doubles(const Doubles &) = delete;
    Doubles &operator=(const Doubles &) = delete;
    ~Doubles() { delete[] data; }
};

// A backward leaves so many rows of sums of dweight and dbias, to be added up in their order.
int64_t part_rows(const Groups &job, bool given);
// `given`: the statistics are constants; else a forward computes them.
void run_forward(const Groups &job, bool given);
void run_backward(const Groups &job, bool given, double *dweight, double *dbias);

// A group whose squares leave the range of the compute dtype is done by itself in double, scaled by a power of two.
struct Careful {
    int64_t group;
    std::vector<double> values; // y or dx
};
bool in_range(const Groups &job, double var);
// False: the group holds inf or NaN, which the ordinary passes hand on as they should.
bool careful_forward(const Groups &job, int64_t group, Careful &result);
bool careful_backward(const Groups &job, int64_t group, Careful &result, double *dweight);
void put_back(const Groups &job, const Careful &result);

} // namespace normkit
