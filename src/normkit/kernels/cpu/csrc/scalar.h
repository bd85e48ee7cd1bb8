// One number of any dtype, widened and narrowed: for the remainders of what the vectors do.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstring>

#include "kernels.h"

namespace normkit {

static inline float widen(float v) { return v; }
static inline double widen(double v) { return v; }
static inline float widen(bf16 v) {
    uint32_t bits = uint32_t(v.bits) << 16;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}
static inline float widen(f16 v) {
    return static_cast<float>(c10::Half(v.bits, c10::Half::from_bits()));
}

template <class T> static inline T narrow(double v) { return static_cast<T>(v); }
template <> inline __attribute__((always_inline)) bf16 narrow<bf16>(double v) { return {c10::BFloat16(static_cast<float>(v)).x}; }
template <> inline __attribute__((always_inline)) f16 narrow<f16>(double v) { return {c10::Half(static_cast<float>(v)).x}; }

// By dtype at run time.
static inline double get(Type type, const void *p, int64_t i) {
    switch (type) {
        case F32: return static_cast<const float *>(p)[i];
        case F64: return static_cast<const double *>(p)[i];
        case BF16: return widen(static_cast<const bf16 *>(p)[i]);
        default: return widen(static_cast<const f16 *>(p)[i]);
    }
}
static inline void set(Type type, void *p, int64_t i, double v) {
    switch (type) {
        case F32: static_cast<float *>(p)[i] = static_cast<float>(v); return;
        case F64: static_cast<double *>(p)[i] = v; return;
        case BF16: static_cast<bf16 *>(p)[i] = narrow<bf16>(v); return;
        default: static_cast<f16 *>(p)[i] = narrow<f16>(v); return;
    }
}

} // namespace normkit
