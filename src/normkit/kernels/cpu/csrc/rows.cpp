// The operators over rows: read the arguments, all of them, before anything can be refused; allocate; run.
#include "tensor.h"

namespace normkit {
namespace {

struct Forward {
    Tensor x, residual, weight, bias, y, total, stats;
    int64_t dims;
    RowsCall call = {};

    Forward(StableIValue *stack, bool add, bool given) {
        Arguments arguments(stack);
        x = arguments.tensor();
        if (add) residual = arguments.tensor();
        weight = arguments.optional_tensor();
        bias = arguments.optional_tensor();
        dims = arguments.integer();
        call.eps = arguments.number();
        call.kind = arguments.integer();
        if (given) y = arguments.tensor();
        if (given && add) total = arguments.tensor();
        call.given = given;
    }

    void operator()(bool train) {
        const int64_t ndim = x.ndim();
        STD_TORCH_CHECK(dims >= 1 && dims <= ndim, "more normalised axes than the input has");
        const Type type = x.type(), wide = total_type(x, residual);
        auto like_x = [&](Type type) { return Tensor::empty(x.sizes(), ndim, torch_dtype(type)); };
        if (!call.given) y = like_x(type);
        if (!call.given && residual) total = like_x(wide);
        if (train) {
            int64_t rows[2] = {2, 1};
            for (int64_t a = 0; a < ndim - dims; ++a) rows[1] *= x.sizes()[a];
            stats = Tensor::empty(rows, 2, compute(wide));
        }
        call.x = x.handle();
        call.residual = residual.handle();
        call.weight = weight.handle();
        call.bias = bias.handle();
        call.dims = dims;
        call.y = y.handle();
        call.total = total.handle();
        call.stats = stats.handle();
        run(call);
    }
};

} // namespace

void rows(StableIValue *stack, uint64_t, uint64_t) {
    Forward f(stack, false, false);
    f(false);
    stack[0] = returned(std::move(f.y));
}

void rows_train(StableIValue *stack, uint64_t, uint64_t) {
    Forward f(stack, false, false);
    f(true);
    stack[0] = returned(std::move(f.y));
    stack[1] = returned(std::move(f.stats));
}

void rows_out(StableIValue *stack, uint64_t, uint64_t) { Forward(stack, false, true)(false); }

void rows_add(StableIValue *stack, uint64_t, uint64_t) {
    Forward f(stack, true, false);
    f(false);
    stack[0] = returned(std::move(f.y));
    stack[1] = returned(std::move(f.total));
}

void rows_add_train(StableIValue *stack, uint64_t, uint64_t) {
    Forward f(stack, true, false);
    f(true);
    stack[0] = returned(std::move(f.y));
    stack[1] = returned(std::move(f.total));
    stack[2] = returned(std::move(f.stats));
}

void rows_add_out(StableIValue *stack, uint64_t, uint64_t) { Forward(stack, true, true)(false); }

// (dy, x, weight?, bias?, stats, dtotal?, dims, eps, kind, need dx, dweight, dbias) -> (dx, dweight, dbias), those not
// needed empty.
void rows_backward(StableIValue *stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    const Tensor dy = arguments.tensor(), x = arguments.tensor(), weight = arguments.optional_tensor(),
                 bias = arguments.optional_tensor(), stats = arguments.tensor(), dtotal = arguments.optional_tensor();
    const int64_t dims = arguments.integer();
    const double eps = arguments.number();
    const int64_t kind = arguments.integer();
    const bool need_dx = arguments.boolean(), need_dw = arguments.boolean(), need_db = arguments.boolean();

    const int64_t none = 0, ndim = x.ndim();
    STD_TORCH_CHECK(dims >= 1 && dims <= ndim, "more normalised axes than the input has");
    const Type type = x.type();
    auto empty = [&](bool needed, int64_t from, Type type) {
        return needed ? Tensor::empty(x.sizes() + from, ndim - from, torch_dtype(type)) : Tensor::empty(&none, 1, type);
    };
    auto of = [&](const Tensor &parameter) { return parameter ? parameter.type() : compute(type); };
    Tensor dx = empty(need_dx, 0, type), dw = empty(need_dw, ndim - dims, of(weight)),
           db = empty(need_db, ndim - dims, of(bias));
    RowsBackwardCall call = {dy.handle(), x.handle(), weight.handle(), stats.handle(), dtotal.handle(), dims, eps, kind,
                             need_dx ? dx.handle() : nullptr, need_dw ? dw.handle() : nullptr,
                             need_db ? db.handle() : nullptr};
    run(call);
    stack[0] = returned(std::move(dx));
    stack[1] = returned(std::move(dw));
    stack[2] = returned(std::move(db));
}

} // namespace normkit
