// Which calls take the short way: tensors of the plain kind, and nothing that watches or changes what torch does.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <limits>

#include "../api.h"

namespace normkit {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

inline const Api *api; // of `_C`, set on import

inline Borrowed borrow(const Tensor &t) {
    return t.defined() ? reinterpret_cast<Borrowed>(const_cast<Tensor *>(&t)) : nullptr;
}

// A dense tensor: no subclass, no transform's wrapper, no lazy conjugate, no forward gradient.
constexpr DispatchKeySet ON_CPU{DispatchKey::CPU, DispatchKey::ADInplaceOrView, DispatchKey::AutogradCPU,
                                DispatchKey::AutocastCPU};
constexpr DispatchKeySet ANYWHERE = ON_CPU | DispatchKeySet{DispatchKey::CUDA, DispatchKey::AutogradCUDA,
                                                            DispatchKey::AutocastCUDA, DispatchKey::XPU,
                                                            DispatchKey::AutogradXPU, DispatchKey::AutocastXPU};
inline bool is_plain(const Tensor &t, DispatchKeySet plain = ON_CPU) {
    return (t.key_set().raw_repr() & ~plain.raw_repr()) == 0 && !t._fw_grad(0).defined();
}
inline bool is_plain_or_none(const Tensor &t) { return !t.defined() || is_plain(t); }

// No mode, no tracing, no transform: they announce themselves as keys of this thread.
inline bool nothing_watches() {
    constexpr DispatchKeySet usual = c10::default_included_set | c10::autocast_dispatch_keyset;
    const auto keys = c10::impl::tls_local_dispatch_key_set();
    return (keys.included_.raw_repr() & ~usual.raw_repr()) == 0 && !at::impl::torch_function_mode_enabled();
}

inline bool has_kernels(at::ScalarType type) {
    return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
}
inline at::ScalarType wide(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

inline Tensor empty(at::IntArrayRef sizes, at::ScalarType type) {
    return Tensor(at::detail::empty_cpu(sizes, type));
}

// Other threads of Python may run while the kernel does, if that is long enough.
class WithoutGil {
public:
    explicit WithoutGil(bool large) : state_(large && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
    ~WithoutGil() {
        if (state_) PyEval_RestoreThread(state_);
    }
    WithoutGil(const WithoutGil &) = delete;

private:
    PyThreadState *state_;
};
constexpr int64_t LONG_ENOUGH = 32768;

// An object that a call was given. Each of these says whether it is of the ordinary kind.
inline bool read_tensor(PyObject *object, const Tensor *&t, DispatchKeySet plain = ON_CPU) {
    if (!THPVariable_CheckExact(object)) return false;
    t = &THPVariable_Unpack(object);
    return is_plain(*t, plain);
}
inline const Tensor NONE;
inline bool read_optional(PyObject *object, const Tensor *&t, DispatchKeySet plain = ON_CPU) {
    t = &NONE;
    return object == Py_None || read_tensor(object, t, plain);
}
inline bool read_number(PyObject *object, double &number) {
    if (PyFloat_Check(object)) return number = PyFloat_AS_DOUBLE(object), true;
    if (!PyLong_CheckExact(object)) return false;
    number = PyLong_AsDouble(object);
    return !PyErr_Occurred() || (PyErr_Clear(), false);
}
// The sizes of the last axes of x, as a tuple, a torch.Size or a list.
inline bool read_shape(PyObject *object, const Tensor &x, int64_t &dims) {
    const bool tuple = PyTuple_Check(object);
    if (!tuple && !PyList_Check(object)) return false;
    dims = tuple ? PyTuple_GET_SIZE(object) : PyList_GET_SIZE(object);
    if (dims < 1 || dims > x.dim()) return false;
    for (int64_t a = 0; a < dims; ++a) {
        PyObject *size = tuple ? PyTuple_GET_ITEM(object, a) : PyList_GET_ITEM(object, a);
        int overflow = 0;
        if (!PyLong_CheckExact(size) || PyLong_AsLongLongAndOverflow(size, &overflow) != x.size(x.dim() - dims + a))
            return false;
    }
    return true;
}
inline bool is_channels_last(const Tensor &x) { // and nothing else
    const auto format = x.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
    return (x.dim() == 4 || x.dim() == 5) && !x.is_contiguous() && x.is_contiguous(format);
}

// For a type of device. `rows` and `groups` look at a call that is new, and return None if it is not for these
// kernels, or (steps, numbers of float32 to work with). A step is the list [what, slots, handle]: which tensors the
// kernel takes, as bytes, and None until `launch(what, tensors, device)` has returned how to launch it on others.
// `stream(index)` is where to. What was found is in the dictionary `known`.
struct Server {
    PyObject *rows = nullptr, *groups = nullptr, *launch = nullptr, *stream = nullptr, *known = nullptr;
};
inline Server servers[c10::COMPILE_TIME_MAX_DEVICE_TYPES];
inline Server *server_of(const Tensor &x) {
    Server &found = servers[int(x.device().type())];
    return found.known ? &found : nullptr;
}

} // namespace normkit
