// Every other grouping: the operators of `_C`, with a graph node of their own.
#pragma once

#include <torch/csrc/PyInterpreter.h>

#include "rows.h"

namespace normkit {

struct Groups {
    const Tensor *x, *weight, *bias, *mask, *mean, *var; // undefined where there is none
    int64_t sizes[5];
    bool on_rows, center;
    double eps;
    Tensor y, stats;

    bool needs_grad() const {
        return at::GradMode::is_enabled() && (x->requires_grad() || weight->requires_grad() || bias->requires_grad());
    }
    void run(bool given = false); // y is the caller's
    void record(PyObject *planned);
};

inline void Groups::run(bool given) {
    static const auto fresh = c10::Dispatcher::singleton().findSchemaOrThrow("normkit::groups", ""),
                      into = c10::Dispatcher::singleton().findSchemaOrThrow("normkit::groups_out", "");
    torch::jit::Stack stack{*x};
    for (const int64_t size : sizes) stack.emplace_back(size);
    for (const Tensor *t : {weight, bias}) stack.push_back(value(*t));
    stack.emplace_back(on_rows);
    for (const Tensor *t : {mask, mean, var}) stack.push_back(value(*t));
    stack.emplace_back(eps);
    stack.emplace_back(center);
    if (given) stack.emplace_back(y);
    const WithoutGil without(x->numel() > LONG_ENOUGH);
    const at::AutoDispatchBelowADInplaceOrView below;
    (given ? into : fresh).callBoxed(stack);
    if (!given) y = std::move(stack[0]).toTensor();
    stats = std::move(stack.back()).toTensor();
}

struct GroupsNode final : torch::autograd::Node {
    SavedVariable x, weight, bias, mask, mean, var;
    Tensor stats;
    int64_t sizes[5];
    bool on_rows, center, given;
    double eps;
    c10::SafePyObject planned;

    explicit GroupsNode(PyObject *planned) : planned(Py_NewRef(planned), getPyInterpreter()) {}

    std::string name() const override { return "GroupsBackward"; }

    std::array<SavedVariable *, 6> saved() { return {&x, &weight, &bias, &mask, &mean, &var}; }

    void release_variables() override {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (SavedVariable *s : saved()) s->reset_data();
        stats.reset();
    }

    variable_list apply(variable_list &&grads) override;

    void compiled_args(CompiledNodeArgs &args) const override {
        for (const SavedVariable *s : const_cast<GroupsNode *>(this)->saved()) args.collect(*s, false);
        args.collect(stats);
        for (const int64_t size : sizes) args.collect(size);
        args.collect(on_rows);
        args.collect(center);
        args.collect(given);
        args.collect(eps);
    }
    variable_list apply_with_saved(const variable_list &grads, SwapSavedVariables &saved) override;
};

inline void Groups::record(PyObject *planned) {
    auto node = c10::make_intrusive<GroupsNode>(planned);
    node->set_next_edges(torch::autograd::collect_next_edges(*x, *weight, *bias));
    torch::autograd::set_history(y, node);
    const Tensor *tensors[] = {x, weight, bias, mask, mean, var};
    for (int k = 0; k < 6; ++k)
        if (tensors[k]->defined()) *node->saved()[k] = SavedVariable(*tensors[k], false);
    node->stats = stats;
    std::copy(sizes, sizes + 5, node->sizes);
    node->on_rows = on_rows;
    node->center = center;
    node->given = mean->defined();
    node->eps = eps;
}

inline variable_list GroupsNode::apply(variable_list &&grads) {
    std::array<Tensor, 6> t;
    Tensor stats, dy = grads[0];
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (int k = 0; k < 6; ++k) t[k] = saved()[k]->unpack();
        stats = this->stats;
    }
    const bool needed[3] = {task_should_compute_output(0), task_should_compute_output(1), task_should_compute_output(2)};
    variable_list result(3);
    if (!dy.defined()) return result;
    std::array<Tensor, 3> found;
    bool plain = !at::GradMode::is_enabled() && !server_of(t[0]) && is_plain(dy) && nothing_watches();
    for (const Tensor &own : t) plain = plain && is_plain_or_none(own);
    if (!plain) {
        const pybind11::gil_scoped_acquire gil;
        TORCH_CHECK(python_groups, "normkit.kernels.cpu._eager: set_backward() was not called");
        auto wrap = [](const Tensor &t) { return THPVariable_Wrap(t); };
        found = call_python(python_groups,
                            Py_BuildValue("NNNNNNNN(OOO)OdO", wrap(dy), wrap(t[0]), wrap(t[1]), wrap(t[2]), wrap(t[3]),
                                          wrap(t[4]), wrap(t[5]), wrap(stats), truth(needed[0]), truth(needed[1]),
                                          truth(needed[2]), planned.ptr(getPyInterpreter()), eps, truth(center)));
    } else {
        const at::AutoDispatchBelowADInplaceOrView below;
        const Tensor &x = t[0];
        if (dy.strides() != x.strides())
            dy = Tensor(at::detail::empty_strided_cpu(x.sizes(), x.strides(), x.scalar_type())).copy_(dy);
        Values stack{dy, x};
        for (const int64_t size : sizes) stack.emplace_back(size);
        stack.insert(stack.end(), {value(t[1]), value(t[2]), on_rows, value(t[3]), stats, given, eps, center, needed[1],
                                   needed[2]});
        call("normkit::groups_backward", stack);
        for (int k = 0; k < 3; ++k) found[k] = std::move(stack[k]).toTensor();
    }
    for (int k = 0; k < 3; ++k)
        if (needed[k]) result[k] = std::move(found[k]);
    return result;
}

// The same for compiled autograd.
inline variable_list groups_gradient(const variable_list &grads, const Values &args) {
    variable_list result(3);
    if (!grads[0].defined()) return result;
    const auto t = pull(args); // x, weight, bias, mask, stats
    Values stack{t[0].new_empty_strided_symint(t[0].sym_sizes(), t[0].sym_strides()).copy_(grads[0]), t[0]};
    stack.insert(stack.end(), args.begin() + 2, args.begin() + 7); // the sizes
    stack.insert(stack.end(), {value(t[1]), value(t[2]), args[7], value(t[3]), t[4]});
    stack.insert(stack.end(), args.begin() + 8, args.begin() + 11); // given, eps, center
    stack.insert(stack.end(), {args[12], args[13]});
    call("normkit::groups_backward", stack);
    for (int k = 0; k < 3; ++k)
        if (args[11 + k].toBool()) result[k] = stack[k].toTensor();
    return result;
}

inline variable_list GroupsNode::apply_with_saved(const variable_list &grads, SwapSavedVariables &swap) {
    for (SavedVariable *s : saved()) swap.before(*s);
    swap.before(stats);
    Values args;
    push(args, {x.unpack(), weight.unpack(), bias.unpack(), mask.unpack(), stats});
    for (const int64_t size : sizes) args.emplace_back(size);
    args.insert(args.end(), {on_rows, given, eps, center});
    for (int k = 0; k < 3; ++k) args.emplace_back(task_should_compute_output(k));
    variable_list result = traced(*this, grads, swap, args, groups_gradient);
    for (SavedVariable *s : saved()) swap.after(*s);
    swap.after(stats);
    return result;
}

} // namespace normkit
