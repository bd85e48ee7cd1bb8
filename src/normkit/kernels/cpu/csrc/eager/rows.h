// Norms over rows, with a graph node of their own.
#pragma once

#include "compiled.h"

namespace normkit {

inline PyObject *python_rows = nullptr, *python_groups = nullptr; // set_backward

struct Rows {
    const Tensor *x = &NONE, *residual = &NONE, *weight = &NONE, *bias = &NONE;
    int64_t dims = 1, kind = 0;
    double eps = 0;
    Tensor y, total, stats;

    bool adds() const { return residual->defined(); }
    bool needs_grad() const {
        return at::GradMode::is_enabled() && (x->requires_grad() || residual->requires_grad() ||
                                              weight->requires_grad() || bias->requires_grad());
    }
    bool is_on_cpu() const {
        return x->is_cpu() && (!adds() || residual->is_cpu()) && (!weight->defined() || weight->is_cpu()) &&
               (!bias->defined() || bias->is_cpu());
    }
    const char *name(bool train, bool given) const {
        static constexpr const char *names[2][3] = {
            {"normkit::rows", "normkit::rows_train", "normkit::rows_out"},
            {"normkit::rows_add", "normkit::rows_add_train", "normkit::rows_add_out"}};
        return names[adds()][given ? 2 : train];
    }
    std::vector<c10::IValue> inputs() const { return {*x, *residual, *weight, *bias}; }

    const char *run(bool train, bool given);
    void record();
};

inline const char *Rows::run(bool train, bool given) {
    RECORD_FUNCTION(name(train, given), inputs(), at::sequence_number::peek());
    const WithoutGil without(x->numel() > LONG_ENOUGH);
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto type = x->scalar_type(), sum = adds() && residual->scalar_type() != type ? at::kFloat : type;
    if (!given) {
        y = empty(x->sizes(), type);
        if (adds()) total = empty(x->sizes(), sum);
    }
    if (train) {
        int64_t rows = 1;
        for (int64_t a = 0; a < x->dim() - dims; ++a) rows *= x->size(a);
        stats = empty({2, rows}, wide(sum));
    }
    return api->rows_forward({borrow(*x), borrow(*residual), borrow(*weight), borrow(*bias), dims, eps, kind, borrow(y),
                              borrow(total), borrow(stats), given});
}

struct RowsNode final : torch::autograd::Node {
    SavedVariable x, weight, bias; // x: the sum, of a norm after a residual add
    Tensor stats;
    bool adds;
    int64_t dims, kind;
    double eps;
    at::ScalarType x_type, residual_type;

    RowsNode(torch::autograd::edge_list &&edges, Rows &call)
        : Node(std::move(edges)), x(call.adds() ? Tensor() : *call.x, false), weight(*call.weight, false),
          bias(call.bias->requires_grad() ? *call.bias : NONE, false), stats(std::move(call.stats)), adds(call.adds()),
          dims(call.dims), kind(call.kind), eps(call.eps), x_type(call.x->scalar_type()),
          residual_type(adds ? call.residual->scalar_type() : x_type) {}

    std::string name() const override { return adds ? "AddRowsBackward" : "RowsBackward"; }

    void release_variables() override {
        const std::lock_guard<std::mutex> lock(mutex_);
        x.reset_data();
        weight.reset_data();
        bias.reset_data();
        stats.reset();
    }

    variable_list apply(variable_list &&grads) override;

    void compiled_args(CompiledNodeArgs &args) const override {
        args.collect(x, adds);
        args.collect(weight, false);
        args.collect(bias, false);
        args.collect(stats);
        args.collect(adds);
        args.collect(dims);
        args.collect(kind);
        args.collect(eps);
        args.collect(x_type);
        args.collect(residual_type);
    }
    variable_list apply_with_saved(const variable_list &grads, SwapSavedVariables &saved) override;
};

inline void Rows::record() {
    torch::autograd::edge_list edges;
    edges.reserve(4);
    auto to = [&](const Tensor &t) {
        if (t.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(t));
        else edges.emplace_back();
    };
    to(*x);
    if (adds()) to(*residual);
    to(*weight);
    to(*bias);
    auto node = c10::make_intrusive<RowsNode>(std::move(edges), *this);
    torch::autograd::set_history(y, node);
    if (!adds()) return;
    torch::autograd::set_history(total, node);
    node->x = SavedVariable(total, true); // it is an output of this very node
}

[[noreturn]] inline void raise_from_python() {
    python_error error;
    error.persist();
    throw std::move(error);
}

// `function(*args)`, which returns three gradients, each a tensor or None; takes `args`. The caller holds the GIL.
inline std::array<Tensor, 3> call_python(PyObject *function, PyObject *args) {
    THPObjectPtr arguments(args);
    if (!arguments) raise_from_python();
    THPObjectPtr result(PyObject_CallObject(function, arguments));
    if (!result) raise_from_python();
    TORCH_CHECK(PyTuple_Check(result.get()) && PyTuple_GET_SIZE(result.get()) == 3, "three gradients were expected");
    std::array<Tensor, 3> grads;
    for (int k = 0; k < 3; ++k) {
        PyObject *grad = PyTuple_GET_ITEM(result.get(), k);
        if (grad == Py_None) continue;
        TORCH_CHECK(THPVariable_Check(grad), "a gradient is a tensor");
        grads[k] = THPVariable_Unpack(grad);
    }
    return grads;
}
inline PyObject *truth(bool value) { return value ? Py_True : Py_False; }

// dx and dweight, dbias of a norm over rows. A gradient that is to be differentiated again, or is not an ordinary
// tensor, goes to Python.
inline variable_list RowsNode::apply(variable_list &&grads) {
    Tensor x, weight, bias, stats;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        x = this->x.unpack(adds ? getptr() : nullptr);
        weight = this->weight.unpack();
        bias = this->bias.unpack();
        stats = this->stats;
    }
    const Tensor &dy = grads[0], dtotal = adds ? grads[1] : Tensor();
    const int first = adds ? 2 : 1;
    const bool to_x = task_should_compute_output(0), to_residual = adds && task_should_compute_output(1),
               need_x = to_x || to_residual, need_weight = task_should_compute_output(first),
               need_bias = task_should_compute_output(first + 1);
    std::array<Tensor, 3> found;
    if (!dy.defined()) {
        found[0] = dtotal;
    } else if (at::GradMode::is_enabled() || server_of(x) || !is_plain(dy) || !is_plain_or_none(dtotal) || !is_plain(x) ||
               !is_plain_or_none(weight) || !nothing_watches()) {
        const pybind11::gil_scoped_acquire gil;
        TORCH_CHECK(python_rows, "normkit.kernels.cpu._eager: set_backward() was not called");
        found = call_python(python_rows, Py_BuildValue("NNNNNN(OOO)LdL", THPVariable_Wrap(dy), THPVariable_Wrap(dtotal),
                                                       THPVariable_Wrap(x), THPVariable_Wrap(weight),
                                                       THPVariable_Wrap(bias), THPVariable_Wrap(stats), truth(need_x),
                                                       truth(need_weight), truth(need_bias), (long long)dims, eps,
                                                       (long long)kind));
    } else {
        RECORD_FUNCTION("normkit::rows_backward", std::vector<c10::IValue>({dy, x, weight}));
        const at::AutoDispatchBelowADInplaceOrView below;
        const auto shape = x.sizes().slice(x.dim() - dims);
        const auto type = wide(x.scalar_type());
        if (need_x) found[0] = empty(x.sizes(), x.scalar_type());
        if (need_weight) found[1] = empty(shape, weight.defined() ? weight.scalar_type() : type);
        if (need_bias) found[2] = empty(shape, bias.defined() ? bias.scalar_type() : type);
        const char *wrong = api->rows_backward({borrow(dy), borrow(x), borrow(weight), borrow(stats), borrow(dtotal), dims,
                                                eps, kind, borrow(found[0]), borrow(found[1]), borrow(found[2])});
        TORCH_CHECK(!wrong, wrong);
    }
    variable_list result(first + 2);
    auto as = [&](at::ScalarType type) {
        return !found[0].defined() || found[0].scalar_type() == type ? found[0] : found[0].to(type);
    };
    if (to_x) result[0] = as(x_type);
    if (to_residual) result[1] = as(residual_type);
    if (need_weight) result[first] = std::move(found[1]);
    if (need_bias) result[first + 1] = std::move(found[2]);
    return result;
}

// The same for compiled autograd.
inline variable_list rows_gradient(const variable_list &grads, const Values &args) {
    const auto t = pull(args); // x, weight, bias, stats
    const int64_t first = args[5].toInt();
    const bool adds = first == 2, to_x = args[6].toBool(), to_residual = args[7].toBool(), need_weight = args[8].toBool(),
               need_bias = args[9].toBool();
    variable_list result(first + 2);
    Tensor dsum = adds ? grads[1] : Tensor();
    if (grads[0].defined()) {
        Values stack{grads[0], t[0], value(t[1]), value(t[2]), t[3], value(dsum), args[2], args[3], args[4],
                     to_x || to_residual, need_weight, need_bias};
        call("normkit::rows_backward", stack);
        dsum = stack[0].toTensor();
        if (need_weight) result[first] = stack[1].toTensor();
        if (need_bias) result[first + 1] = stack[2].toTensor();
    }
    auto as = [&](const c10::IValue &type) { return dsum.defined() ? dsum.to(type.toScalarType()) : dsum; };
    if (to_x) result[0] = as(args[10]);
    if (to_residual) result[1] = as(args[11]);
    return result;
}

inline variable_list RowsNode::apply_with_saved(const variable_list &grads, SwapSavedVariables &saved) {
    for (SavedVariable *s : {&x, &weight, &bias}) saved.before(*s);
    saved.before(stats);
    Values args;
    push(args, {x.unpack(adds ? getptr() : nullptr), weight.unpack(), bias.unpack(), stats});
    const int64_t first = adds ? 2 : 1;
    for (const c10::IValue &arg : Values{dims, eps, kind, first, task_should_compute_output(0),
                                         adds && task_should_compute_output(1), task_should_compute_output(first),
                                         task_should_compute_output(first + 1), int64_t(x_type), int64_t(residual_type)})
        args.push_back(arg);
    variable_list result = traced(*this, grads, saved, args, rows_gradient);
    for (SavedVariable *s : {&x, &weight, &bias}) saved.after(*s);
    saved.after(stats);
    return result;
}

} // namespace normkit
