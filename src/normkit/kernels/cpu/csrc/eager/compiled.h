// What compiled autograd asks of a node: its gradient as a function of values, made of operators alone, which it
// traces once with tensors that hold no numbers.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include "ordinary.h"

namespace normkit {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::SwapSavedVariables;
using Values = std::vector<c10::IValue>;

inline c10::IValue value(const Tensor &t) { return t.defined() ? c10::IValue(t) : c10::IValue(); }

inline void call(const char *op, Values &stack) {
    c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(stack);
}

// A list without holes, and where its tensors belong: None has no place in a schema.
inline void push(Values &to, const std::vector<Tensor> &tensors) {
    std::vector<Tensor> defined;
    std::vector<bool> is_defined;
    for (const Tensor &t : tensors) {
        is_defined.push_back(t.defined());
        if (t.defined()) defined.push_back(t);
    }
    to.insert(to.end(), {c10::IValue(defined), c10::IValue(is_defined)});
}
inline std::vector<Tensor> pull(const Values &from) {
    const auto defined = from[0].toTensorVector();
    const auto is_defined = from[1].toBoolList();
    std::vector<Tensor> tensors(is_defined.size());
    size_t next = 0;
    for (size_t k = 0; k < tensors.size(); ++k)
        if (is_defined[k]) tensors[k] = defined[next++];
    return tensors;
}

// gradient(grads, args), as a call in the graph that is being traced.
inline variable_list traced(torch::autograd::Node &node, const variable_list &grads, SwapSavedVariables &saved,
                            const Values &args, variable_list (*gradient)(const variable_list &, const Values &)) {
    using torch::dynamo::autograd::IValuePacker;
    const auto &compiler = torch::dynamo::autograd::getPyCompilerInterface();
    std::vector<at::TypePtr> schema;
    for (const c10::IValue &arg : args) schema.push_back(arg.type());
    schema[0] = at::ListType::ofTensors();
    const auto name = compiler->bind_function(saved.get_py_compiler(), node.name(), gradient, schema, true, true);
    const auto results = IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
        torch::dynamo::autograd::get_input_metadata(node.next_edges()));
    return compiler->call_function(saved.get_py_compiler(), "apply_functional", name, grads, args, results);
}

} // namespace normkit
