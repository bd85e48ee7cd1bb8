// Norms on a GPU: what Python found out about a kind of call is kept, and its kernels launched from here.
#pragma once

#include <c10/core/DeviceGuard.h>

#include "groups.h"

namespace normkit {

inline PyObject *not_null(PyObject *object) {
    if (!object) raise_from_python();
    return object;
}

// Shapes, strides, dtypes and the device of a call, in a few numbers.
template <size_t N> PyObject *kind_of(const std::array<int64_t, N> &numbers) {
    return not_null(PyBytes_FromStringAndSize(reinterpret_cast<const char *>(numbers.data()), sizeof(numbers)));
}
inline int64_t bits(double number) {
    int64_t found;
    std::memcpy(&found, &number, sizeof(found));
    return found;
}
using Slots = std::vector<const Tensor *>;
inline int64_t dtypes_of(const Slots &tensors) {
    int64_t found = 0;
    for (const Tensor *t : tensors) found = found * 256 + (t->defined() ? 1 + int64_t(t->scalar_type()) : 0);
    return found;
}
inline bool lie_together(const Tensor &x, const Slots &others) {
    for (const Tensor *t : others)
        if (t->defined() && (!t->is_contiguous() || t->device() != x.device())) return false;
    return !at::autocast::is_autocast_enabled(x.device().type());
}

inline PyObject *find(Server &server, PyObject *kind) { // a new reference, or null where it has not been seen
    PyObject *found = PyDict_GetItemWithError(server.known, kind);
    if (!found && PyErr_Occurred()) raise_from_python();
    return Py_XNewRef(found);
}
constexpr Py_ssize_t MOST_KINDS = 4096; // a program with more of them has shapes that do not come again
inline PyObject *remember(Server &server, PyObject *kind, PyObject *looked) {
    if (not_null(looked) == Py_NotImplemented) return looked; // not now: it is asked again
    if (PyDict_Size(server.known) >= MOST_KINDS) PyDict_Clear(server.known);
    if (PyDict_SetItem(server.known, kind, looked) < 0) raise_from_python();
    return looked;
}

// A handle: (run, grid, what Triton wants of its own, numbers and constants).
inline void launch_again(PyObject *handle, PyObject *stream, const Slots &tensors) {
    std::vector<PyObject *> args;
    args.reserve(64);
    auto put = [&](int k) {
        PyObject *tuple = PyTuple_GET_ITEM(handle, k);
        for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(tuple); ++j) args.push_back(PyTuple_GET_ITEM(tuple, j));
    };
    put(1);
    args.push_back(stream);
    put(2);
    std::vector<THPObjectPtr> addresses;
    for (const Tensor *t : tensors)
        if (t->defined()) args.push_back(addresses.emplace_back(not_null(PyLong_FromVoidPtr(t->data_ptr()))).get());
        else args.push_back(Py_None);
    put(3);
    const THPObjectPtr result(not_null(PyObject_Vectorcall(PyTuple_GET_ITEM(handle, 0), args.data(), args.size(), nullptr)));
}

inline void launch_steps(Server &server, PyObject *steps, const Slots &slots, at::Device device) {
    THPObjectPtr stream;
    for (Py_ssize_t s = 0; s < PyTuple_GET_SIZE(steps); ++s) {
        PyObject *step = PyTuple_GET_ITEM(steps, s);
        THPObjectPtr handle(Py_NewRef(PyList_GET_ITEM(step, 2))); // another thread may put another there
        Slots tensors;
        uintptr_t together = 0;
        const char *which = PyBytes_AS_STRING(PyList_GET_ITEM(step, 1));
        for (Py_ssize_t k = 0; k < PyBytes_GET_SIZE(PyList_GET_ITEM(step, 1)); ++k) {
            tensors.push_back(slots.at(which[k]));
            if (tensors.back()->defined()) together |= reinterpret_cast<uintptr_t>(tensors.back()->data_ptr());
        }
        if (handle.get() != Py_None && together % 16 == 0) {
            if (!stream) stream = not_null(PyObject_CallFunction(server.stream, "i", int(device.index())));
            launch_again(handle.get(), stream, tensors);
            continue;
        }
        THPObjectPtr list(not_null(PyTuple_New(tensors.size())));
        for (size_t k = 0; k < tensors.size(); ++k) PyTuple_SET_ITEM(list.get(), k, THPVariable_Wrap(*tensors[k]));
        PyObject *what = PyList_GET_ITEM(step, 0);
        PyObject *made = not_null(PyObject_CallFunction(server.launch, "OON", what, list.get(), THPDevice_New(device)));
        if (made == Py_None) Py_DECREF(made);
        else PyList_SetItem(step, 2, made);
    }
}

// Does what `run` does on the CPU; says whether it did.
inline bool run_on(Server &server, Rows &call, bool train) {
    const Tensor &x = *call.x;
    const auto shape = x.sizes().slice(x.dim() - call.dims);
    bool fits = x.is_contiguous() && x.numel() > 0 && (!call.adds() || call.residual->sizes() == x.sizes());
    for (const Tensor *t : {call.weight, call.bias}) fits = fits && (!t->defined() || t->sizes() == shape);
    if (!fits || !lie_together(x, {call.residual, call.weight, call.bias})) return false;
    const int64_t dim = c10::multiply_integers(shape);
    THPObjectPtr kind(kind_of<6>({x.numel(), dim, dtypes_of({call.x, call.residual, call.weight, call.bias}),
                                  call.kind * 2 + train, x.device().index(), bits(call.eps)}));
    THPObjectPtr found(find(server, kind));
    if (!found) {
        auto wrap = [](const Tensor *t) { return THPVariable_Wrap(*t); };
        found = remember(server, kind,
                         PyObject_CallFunction(server.rows, "NNNNLdLO", wrap(call.x), wrap(call.residual), wrap(call.weight),
                                               wrap(call.bias), (long long)call.dims, call.eps, (long long)call.kind,
                                               truth(train)));
    }
    if (!PyTuple_Check(found.get())) return false;
    RECORD_FUNCTION(call.name(train, false), call.inputs(), at::sequence_number::peek());
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::DeviceGuard on_its_device(x.device());
    {
        const WithoutGil waits(true); // for the device, where memory is short
        call.y = at::empty(x.sizes(), x.options());
        if (call.adds()) call.total = at::empty(x.sizes(), x.options());
        if (train) call.stats = at::empty({2, x.numel() / dim}, x.options().dtype(at::kFloat));
    }
    launch_steps(server, PyTuple_GET_ITEM(found.get(), 0),
                 {call.x, call.residual, call.weight, call.bias, &call.y, &call.total, &call.stats}, x.device());
    return true;
}

constexpr int64_t STATISTICS = 7; // numbers that are kept of a group

// The same, with statistics that are moved where `mean` is not what is to be used.
inline bool run_on(Server &server, Groups &call, PyObject *num_groups, const Tensor &mean, const Tensor &var, double momentum) {
    const Tensor &x = *call.x;
    if (!lie_together(x, {call.weight, call.bias, &mean, &var})) return false;
    const bool given = call.mean->defined(), batch = num_groups == Py_None;
    const int64_t *s = call.sizes, dtypes = dtypes_of({call.x, call.weight, call.bias, &mean, &var});
    THPObjectPtr kind(kind_of<10>({s[0], s[1], s[2], s[3], s[4], dtypes, x.device().index() * 4 + given * 2 + batch,
                                   bits(call.eps), bits(momentum), x.is_contiguous()}));
    THPObjectPtr found(find(server, kind));
    if (!found) {
        auto wrap = [](const Tensor *t) { return THPVariable_Wrap(*t); };
        found = remember(server, kind,
                         PyObject_CallFunction(server.groups, "NO(LLLLL)NNNNOdd", wrap(call.x), num_groups, (long long)s[0],
                                               (long long)s[1], (long long)s[2], (long long)s[3], (long long)s[4],
                                               wrap(call.weight), wrap(call.bias), wrap(&mean), wrap(&var), truth(given),
                                               momentum, call.eps));
    }
    if (!PyTuple_Check(found.get())) return false;
    RECORD_FUNCTION("normkit::groups", Values({x}), at::sequence_number::peek());
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::DeviceGuard on_its_device(x.device());
    const auto wide = x.options().dtype(at::kFloat);
    const int64_t work = PyLong_AsLongLong(PyTuple_GET_ITEM(found.get(), 1));
    Tensor scratch;
    {
        const WithoutGil waits(true); // for the device, where memory is short
        call.y = at::empty_strided(x.sizes(), x.strides(), x.options());
        call.stats = at::empty({STATISTICS, s[0] * s[2]}, wide);
        scratch = at::empty({work}, wide);
    }
    launch_steps(server, PyTuple_GET_ITEM(found.get(), 0),
                 {call.x, &mean, &var, call.weight, call.bias, &call.y, &call.stats, &scratch, &NONE}, x.device());
    return true;
}

} // namespace normkit
