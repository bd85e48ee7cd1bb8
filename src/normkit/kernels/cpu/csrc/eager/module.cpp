// normkit.kernels.cpu._eager: the shortest way from a Python call to a kernel, for calls of the ordinary kind, with
// graph nodes in C++. It is compiled for one version of torch and one of Python; without it, everything works through
// the operators of `_C`, a few microseconds slower.
#include "gpu.h"

namespace normkit {
namespace {

PyObject *none() { Py_RETURN_NONE; }

bool takes(const char *name, Py_ssize_t given, Py_ssize_t expected) {
    if (given == expected) return true;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, expected, given);
    return false;
}

// A tensor that results of x can be written into.
bool is_given(PyObject *out, const Tensor &x, Tensor &t) {
    const Tensor *read;
    if (!read_tensor(out, read) || (read->is_inference() && !c10::InferenceMode::is_enabled())) return false;
    t = *read;
    const bool fits = t.scalar_type() == x.scalar_type() && t.sizes() == x.sizes() && t.is_contiguous();
    return fits && !(at::GradMode::is_enabled() && t.requires_grad());
}

PyObject *finish(Rows &call, PyObject *out) {
    const bool given = out != Py_None, train = call.needs_grad();
    Server *server = server_of(*call.x);
    if (!server && !call.is_on_cpu()) return none();
    if (given && !server) {
        if (call.adds()) {
            if (!PyTuple_CheckExact(out) || PyTuple_GET_SIZE(out) != 2 || !is_given(PyTuple_GET_ITEM(out, 0), *call.x, call.y) ||
                !is_given(PyTuple_GET_ITEM(out, 1), *call.x, call.total))
                return none();
        } else if (!is_given(out, *call.x, call.y)) return none();
    }
    if (given && (train || server)) return none();
    if (server ? !run_on(*server, call, train) : bool(call.run(train, given))) return none(); // who is asked next says why
    if (given) {
        call.y.unsafeGetTensorImpl()->bump_version();
        if (call.adds()) call.total.unsafeGetTensorImpl()->bump_version();
        return Py_NewRef(out);
    }
    if (train) call.record();
    if (!call.adds()) return THPVariable_Wrap(std::move(call.y));
    return Py_BuildValue("NN", THPVariable_Wrap(std::move(call.y)), THPVariable_Wrap(std::move(call.total)));
}

double smallest(const Tensor &x) {
    return x.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

// What an RMSNorm may ask for besides: 1 + weight, and a rounding before it meets the weight.
constexpr long AFTER_CAST = 16;
bool read_options(PyObject *object, Rows &call) {
    const long options = PyLong_CheckExact(object) ? PyLong_AsLong(object) : -1;
    if (options & ~(long(ZERO_CENTERED) | AFTER_CAST)) return false;
    call.kind = options & ZERO_CENTERED;
    if (!(options & AFTER_CAST) || !call.weight->defined()) return true;
    const auto type = call.x->scalar_type();
    if (call.weight->scalar_type() != type) return false; // an output of another dtype
    call.kind |= type == at::kBFloat16 ? int64_t(ROUND_BF16) : type == at::kHalf ? int64_t(ROUND_F16) : 0;
    return true;
}

// (x, [residual,] shape, weight, [bias,] eps, out); not centred, with options at the end if there are any
template <bool ADD, bool CENTERED> PyObject *norm(PyObject *, PyObject *const *args, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    const Py_ssize_t expected = 5 + ADD + CENTERED;
    const bool options = !CENTERED && count == expected + 1;
    if (!options && !takes("this norm", count, expected)) return nullptr;
    Rows call;
    call.kind = CENTERED ? int64_t(CENTER) : 0;
    if (!nothing_watches() || !read_tensor(*args++, call.x, ANYWHERE) || !has_kernels(call.x->scalar_type())) return none();
    if (ADD && (!read_tensor(*args++, call.residual, ANYWHERE) || call.residual->scalar_type() != call.x->scalar_type()))
        return none();
    if (!read_shape(*args++, *call.x, call.dims) || !read_optional(*args++, call.weight, ANYWHERE)) return none();
    if (CENTERED && !read_optional(*args++, call.bias, ANYWHERE)) return none();
    if (!ADD && !CENTERED && is_channels_last(*call.x)) return none(); // torch keeps it so
    if (!CENTERED && *args == Py_None) call.eps = smallest(*call.x);
    else if (!read_number(*args, call.eps)) return none();
    if (options && !read_options(args[2], call)) return none();
    return finish(call, args[1]);
    END_HANDLE_TH_ERRORS
}

// Parameters and running statistics: one number a channel.
bool read_channels(PyObject *object, int64_t channels, const Tensor *&t) {
    if (!read_optional(object, t, ANYWHERE)) return false;
    return !t->defined() || (t->dim() == 1 && t->size(0) == channels && has_kernels(t->scalar_type()));
}
// Which numbers share one mean, as the five sizes that Python's plans find; channels at axis 1.
bool read_sizes(PyObject *num_groups, Groups &call) {
    const Tensor &x = *call.x;
    const bool batch = num_groups == Py_None, flat = x.is_contiguous();
    if (x.dim() < 2 || x.numel() == 0 || x.size(1) < 2 || (!flat && !is_channels_last(x))) return false;
    const int64_t n = x.size(0), c = x.size(1), places = x.numel() / (n * c);
    int64_t groups = c;
    if (!batch && num_groups != Py_True) {
        int overflow = 0;
        groups = PyLong_CheckExact(num_groups) ? PyLong_AsLongLongAndOverflow(num_groups, &overflow) : 0;
        if (groups < 1 || c % groups) return false;
    }
    const int64_t rows = flat ? 1 : places, inner = flat ? places : 1;
    const int64_t sizes[5] = {batch ? 1 : n, batch ? n * rows : rows, groups, c / groups, inner};
    std::copy(sizes, sizes + 5, call.sizes);
    return sizes[1] * sizes[3] * sizes[4] > 1; // one number has no spread
}
bool share_memory(const Tensor &a, const Tensor &b) { // both fill the memory from their first number to their last
    const auto *first = static_cast<const char *>(a.const_data_ptr()), *second = static_cast<const char *>(b.const_data_ptr());
    return first < second + b.nbytes() && second < first + a.nbytes();
}
bool is_given_as(PyObject *out, const Groups &call, Tensor &t) {
    const Tensor *read;
    if (!read_tensor(out, read) || (read->is_inference() && !c10::InferenceMode::is_enabled())) return false;
    t = *read;
    if (t.scalar_type() != call.x->scalar_type() || t.sizes() != call.x->sizes() || t.strides() != call.x->strides() ||
        (at::GradMode::is_enabled() && t.requires_grad()))
        return false;
    for (const Tensor *own : {call.weight, call.bias, call.mean, call.var})
        if (own->defined() && (!own->is_contiguous() || share_memory(t, *own))) return false;
    return t.const_data_ptr() == call.x->const_data_ptr() || !share_memory(t, *call.x);
}

// (x, num_groups, weight, bias, running mean, running variance, given, momentum, eps, out). num_groups is None where
// all samples share a mean, and True for one group a channel. Given statistics are used, others are moved.
PyObject *channels(PyObject *, PyObject *const *args, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    if (!takes("channels", count, 10)) return nullptr;
    Groups call;
    call.mask = &NONE;
    call.on_rows = false;
    call.center = true;
    const Tensor *mean, *var;
    if (!nothing_watches() || !read_tensor(args[0], call.x, ANYWHERE) || !has_kernels(call.x->scalar_type()) ||
        !read_sizes(args[1], call))
        return none();
    const int64_t c = call.x->size(1);
    if (!read_channels(args[2], c, call.weight) || !read_channels(args[3], c, call.bias) ||
        !read_channels(args[4], c, mean) || !read_channels(args[5], c, var) || !read_number(args[8], call.eps))
        return none();
    const bool batch = args[1] == Py_None, given = args[6] == Py_True, moves = !given && mean->defined();
    double momentum = 0;
    if (!(call.eps > 0) || mean->defined() != var->defined() || (given && !mean->defined()) || (moves && !batch) ||
        (batch && !given && !read_number(args[7], momentum)))
        return none();
    for (const Tensor *t : {mean, var})
        if (t->requires_grad() || (t->defined() && !t->is_contiguous())) return none();
    call.mean = given ? mean : &NONE;
    call.var = given ? var : &NONE;
    const bool train = call.needs_grad(), into = args[9] != Py_None;
    Server *server = server_of(*call.x);
    for (const Tensor *t : {call.x, call.weight, call.bias, mean, var})
        if (!server && t->defined() && !t->is_cpu()) return none();
    if (into && (train || server || !is_given_as(args[9], call, call.y))) return none();
    if (!server) call.run(into);
    else if (!run_on(*server, call, args[1], *mean, *var, momentum)) return none();
    if (moves && !server) {
        Values stack{*mean, *var, call.stats, momentum};
        static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("normkit::update_running", "");
        const at::AutoDispatchBelowADInplaceOrView below;
        op.callBoxed(stack);
    }
    for (const Tensor *t : {mean, var})
        if (moves && !t->is_inference()) t->unsafeGetTensorImpl()->bump_version();
    if (into) {
        call.y.unsafeGetTensorImpl()->bump_version();
        return Py_NewRef(args[9]);
    }
    if (train) {
        const int64_t *s = call.sizes;
        THPObjectPtr planned(Py_BuildValue("((LLLLL)O)", (long long)s[0], (long long)s[1], (long long)s[2], (long long)s[3],
                                           (long long)s[4], Py_False));
        if (!planned) return nullptr;
        call.record(planned.get());
    }
    return THPVariable_Wrap(std::move(call.y));
    END_HANDLE_TH_ERRORS
}

// (x, weight, bias): a linear layer on a few rows without a gradient, bound by reading the weight.
constexpr int64_t FEW_ROWS = 8; // for more of them a matrix product is faster
PyObject *linear(PyObject *, PyObject *const *args, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    if (!takes("linear", count, 3)) return nullptr;
    const Tensor *x, *weight, *bias;
    if (at::GradMode::is_enabled() || !nothing_watches() || at::autocast::is_autocast_enabled(at::kCPU) ||
        !read_tensor(args[0], x) || !read_tensor(args[1], weight) || !read_optional(args[2], bias))
        return none();
    for (const Tensor *t : {x, weight, bias})
        if (t->defined() && (t->scalar_type() != at::kFloat || !t->is_contiguous())) return none();
    if (x->dim() < 1 || weight->dim() != 2 || x->size(-1) != weight->size(1) || x->numel() == 0 ||
        x->numel() > FEW_ROWS * weight->size(1) || (bias->defined() && (bias->dim() != 1 || bias->size(0) != weight->size(0))))
        return none();
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("normkit::linear", "");
    torch::jit::Stack stack{*x, *weight, value(*bias)};
    op.callBoxed(stack);
    return THPVariable_Wrap(std::move(stack[0]).toTensor());
    END_HANDLE_TH_ERRORS
}

// Calls that have been looked at elsewhere: what is wrong with these is an error.
const Tensor &some(PyObject *object, bool optional = false) {
    if (optional && object == Py_None) return NONE;
    TORCH_CHECK_TYPE(THPVariable_Check(object), "a tensor was expected");
    return THPVariable_Unpack(object);
}
int64_t whole(PyObject *object) {
    const long long number = PyLong_AsLongLong(object);
    if (PyErr_Occurred()) throw python_error();
    return number;
}
double real(PyObject *object) {
    const double number = PyFloat_AsDouble(object);
    if (PyErr_Occurred()) throw python_error();
    return number;
}

// (x, [residual,] weight, bias, dims, eps, kind)
template <bool ADD> PyObject *admitted_rows(PyObject *, PyObject *const *args, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    if (!takes(ADD ? "rows_add" : "rows", count, 6 + ADD)) return nullptr;
    Rows call;
    call.x = &some(*args++);
    if (ADD) call.residual = &some(*args++);
    call.weight = &some(args[0], true);
    call.bias = &some(args[1], true);
    call.dims = whole(args[2]);
    call.eps = real(args[3]);
    call.kind = whole(args[4]);
    TORCH_CHECK(call.dims >= 1 && call.dims <= call.x->dim(), "more normalised axes than the input has");
    const bool train = call.needs_grad();
    const char *wrong = call.run(train, false);
    TORCH_CHECK(!wrong, wrong);
    if (train) call.record();
    if (!ADD) return THPVariable_Wrap(std::move(call.y));
    return Py_BuildValue("NN", THPVariable_Wrap(std::move(call.y)), THPVariable_Wrap(std::move(call.total)));
    END_HANDLE_TH_ERRORS
}

PyObject *admitted_groups(PyObject *, PyObject *const *args, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    if (!takes("groups", count, 15)) return nullptr;
    Groups call;
    call.x = &some(args[0]);
    for (int k = 0; k < 5; ++k) call.sizes[k] = whole(args[1 + k]);
    call.weight = &some(args[6], true);
    call.bias = &some(args[7], true);
    call.on_rows = PyObject_IsTrue(args[8]);
    call.mask = &some(args[9], true);
    call.mean = &some(args[10], true);
    call.var = &some(args[11], true);
    call.eps = real(args[12]);
    call.center = PyObject_IsTrue(args[13]);
    const bool train = call.needs_grad();
    call.run();
    if (train) call.record(args[14]);
    return Py_BuildValue("NN", THPVariable_Wrap(std::move(call.y)), THPVariable_Wrap(std::move(call.stats)));
    END_HANDLE_TH_ERRORS
}

// Returns what was set before.
PyObject *set_backward(PyObject *, PyObject *const *args, Py_ssize_t count) {
    if (!takes("set_backward", count, 2)) return nullptr;
    PyObject *before = Py_BuildValue("OO", python_rows ? python_rows : Py_None, python_groups ? python_groups : Py_None);
    PyObject **places[2] = {&python_rows, &python_groups};
    for (int k = 0; before && k < 2; ++k) Py_XSETREF(*places[k], args[k] == Py_None ? nullptr : Py_NewRef(args[k]));
    return before;
}

// (type of device, rows, groups, launch, stream), or None in their place. Returns the dictionary of what will be found.
PyObject *serve(PyObject *, PyObject *const *args, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    if (!takes("serve", count, 5)) return nullptr;
    const char *type = PyUnicode_AsUTF8(args[0]);
    if (!type) return nullptr;
    Server &server = servers[int(at::Device(type).type())];
    PyObject **places[4] = {&server.rows, &server.groups, &server.launch, &server.stream};
    for (int k = 0; k < 4; ++k) Py_XSETREF(*places[k], Py_NewRef(args[1 + k]));
    Py_XSETREF(server.known, args[1] == Py_None ? nullptr : PyDict_New());
    if (!server.known) Py_RETURN_NONE;
    return Py_NewRef(server.known);
    END_HANDLE_TH_ERRORS
}

template <class Function> PyCFunction fast(Function *function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)); // as Python wants it
}

PyMethodDef methods[] = {
    {"layer_norm", fast(norm<false, true>), METH_FASTCALL, "layer_norm(x, shape, weight, bias, eps, out)"},
    {"rms_norm", fast(norm<false, false>), METH_FASTCALL, "rms_norm(x, shape, weight, eps, out[, options])"},
    {"add_layer_norm", fast(norm<true, true>), METH_FASTCALL, "add_layer_norm(x, residual, shape, weight, bias, eps, out)"},
    {"add_rms_norm", fast(norm<true, false>), METH_FASTCALL, "add_rms_norm(x, residual, shape, weight, eps, out[, options])"},
    {"rows", fast(admitted_rows<false>), METH_FASTCALL, "rows(x, weight, bias, dims, eps, kind)"},
    {"rows_add", fast(admitted_rows<true>), METH_FASTCALL, "rows_add(x, residual, weight, bias, dims, eps, kind)"},
    {"groups", fast(admitted_groups), METH_FASTCALL,
     "groups(x, k0, r1, k2, r3, i, weight, bias, on_rows, mask, mean, var, eps, center, planned)"},
    {"channels", fast(channels), METH_FASTCALL,
     "channels(x, num_groups, weight, bias, mean, var, given, momentum, eps, out)"},
    {"linear", fast(linear), METH_FASTCALL, "linear(x, weight, bias)"},
    {"set_backward", fast(set_backward), METH_FASTCALL, "set_backward(rows, groups): gradients of gradients"},
    {"serve", fast(serve), METH_FASTCALL, "serve(device, rows, groups, launch, stream): calls on GPUs; None ends it"},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_eager", "Norms of ordinary tensors.", -1, methods,
                          nullptr, nullptr, nullptr, nullptr};

// Another torch may lay out its objects in another way. The released builds of one version, for the CPU and for each
// kind of GPU (2.13.0+cpu, 2.13.0+cu130, 2.13.0+rocm7.0, 2.13.0+xpu), do not.
std::string_view layout_of(std::string_view version) {
    const auto plus = version.find('+');
    const auto released = version.substr(0, plus), build = plus == version.npos ? "cpu" : version.substr(plus + 1);
    const bool is_released = released.find_first_not_of("0123456789.") == version.npos;
    for (const std::string_view known : {"cpu", "xpu", "cu", "rocm"})
        if (is_released && build.substr(0, known.size()) == known &&
            build.find_first_not_of("0123456789.", known.size()) == version.npos)
            return released;
    return version;
}
bool is_this_torch() {
    THPObjectPtr torch(PyImport_ImportModule("torch"));
    THPObjectPtr version(torch ? PyObject_GetAttrString(torch, "__version__") : nullptr);
    THPObjectPtr text(version ? PyObject_Str(version) : nullptr);
    const char *here = text ? PyUnicode_AsUTF8(text) : nullptr;
    if (!here) return false;
    if (layout_of(here) == layout_of(NORMKIT_TORCH)) return true;
    PyErr_Format(PyExc_ImportError, "it was built for torch %s, and this is torch %s", NORMKIT_TORCH, here);
    return false;
}
bool load_api() {
    THPObjectPtr library(PyImport_ImportModule("normkit.kernels.cpu._C"));
    THPObjectPtr capsule(library ? PyObject_CallMethod(library, "api", nullptr) : nullptr);
    if (!capsule) return false;
    api = static_cast<const Api *>(PyCapsule_GetPointer(capsule, API_NAME));
    if (!api) return false;
    if (api->version == API_VERSION) return true;
    PyErr_SetString(PyExc_ImportError, "it was built with another version of normkit's kernels");
    return false;
}

} // namespace
} // namespace normkit

PyMODINIT_FUNC PyInit__eager(void) {
    if (!normkit::is_this_torch() || !normkit::load_api()) return nullptr;
    return PyModule_Create(&normkit::definition);
}
