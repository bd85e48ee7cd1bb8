// What Python loads: the operators of namespace normkit on the CPU, and which instructions they use.
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <cstdlib>
#include <cstring>

#include "tensor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace normkit {

#if defined(__x86_64__) && !defined(NK_EMULATE_AVX512)
static bool has_f16c() { // clang's __builtin_cpu_supports does not know it
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

#if defined(__x86_64__) && !defined(NK_EMULATE_AVX512)
// AVX-512 where arithmetic is the limit, for rows and for narrow dtypes. Groups of float32 and float64 are bound by
// memory, and there registers of 64 bytes are slower by a tenth to a quarter: loads that begin anywhere cross a cache
// line each (measured on a Xeon of 2.5 GHz).
static Kernels mixed_kernels() {
    Kernels mixed = avx512_kernels;
    for (const Type type : {F32, F64}) {
        for (auto table : {&Kernels::span_moments, &Kernels::span_apply, &Kernels::span_sums, &Kernels::span_gradient,
                           &Kernels::column_moments, &Kernels::column_apply, &Kernels::column_sums,
                           &Kernels::column_gradient})
            (mixed.*table)[type] = (avx2_kernels.*table)[type];
        for (auto table : {&Kernels::channel_scales, &Kernels::channel_slopes})
            (mixed.*table)[type] = (avx2_kernels.*table)[type];
    }
    return mixed;
}
#endif

// NORMKIT_ISA=generic or avx2 asks for less than the machine has, avx512 for that alone: for tests and comparisons.
const Kernels &kernels() {
    static const Kernels chosen = []() -> Kernels {
#if defined(NK_EMULATE_AVX512)
        return avx512_kernels;
#elif defined(__x86_64__)
        const char *asked = std::getenv("NORMKIT_ISA");
        auto asks = [&](const char *name) { return asked && !std::strcmp(asked, name); };
        __builtin_cpu_init();
        if (!asks("generic") && !asks("avx2") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
            return asks("avx512") ? avx512_kernels : mixed_kernels();
        if (!asks("generic") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
            return avx2_kernels;
#endif
        return generic_kernels;
    }();
    return chosen;
}

} // namespace normkit

// Their schemas are in kernels/operators.py.
STABLE_TORCH_LIBRARY_IMPL(normkit, CPU, m) {
    m.impl("rows", normkit::rows);
    m.impl("rows_train", normkit::rows_train);
    m.impl("rows_out", normkit::rows_out);
    m.impl("rows_add", normkit::rows_add);
    m.impl("rows_add_train", normkit::rows_add_train);
    m.impl("rows_add_out", normkit::rows_add_out);
    m.impl("rows_backward", normkit::rows_backward);
    m.impl("groups", normkit::groups);
    m.impl("groups_out", normkit::groups_out);
    m.impl("groups_backward", normkit::groups_backward);
    m.impl("linear", normkit::linear);
    m.impl("update_running", normkit::update_running);
}

static PyObject *isa(PyObject *, PyObject *) { return PyUnicode_FromString(normkit::kernels().name); }

// For _eager, which calls the same functions without torch's dispatcher.
static PyObject *api(PyObject *, PyObject *) {
    static const normkit::Api table = {normkit::API_VERSION, normkit::rows_forward_of, normkit::rows_backward_of};
    return PyCapsule_New(const_cast<normkit::Api *>(&table), normkit::API_NAME, nullptr);
}

static PyMethodDef methods[] = {
    {"api", api, METH_NOARGS, "The kernels as C functions, in a capsule."},
    {"isa", isa, METH_NOARGS, "The instruction set that the kernels use on this machine."},
    {nullptr, nullptr, 0, nullptr},
};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", "normkit's CPU kernels.", -1, methods,
                             nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&module); }
