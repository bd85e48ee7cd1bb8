// The least of a tensor that the operators need, over LibTorch's stable C interface: no allocation of our own, no
// virtual call. Boxed arguments are read in order, and owned until the operator returns: all of them have to be read,
// or they leak.
#pragma once

#include <torch/csrc/stable/library.h>

#include <utility>

#include "api.h"
#include "kernels.h"

namespace normkit {

inline void check(AOTITorchError error) { TORCH_ERROR_CODE_CHECK(error); }

inline int32_t torch_dtype(Type type) {
    static const int32_t codes[TYPES] = {
        aoti_torch_dtype_float32(), aoti_torch_dtype_float64(), aoti_torch_dtype_bfloat16(),
        aoti_torch_dtype_float16()};
    return codes[type];
}

// A large output is fresh memory, and the kernel's work for each page of it costs more than the norm: ask for large
// pages, a hint for this block alone.
constexpr int64_t LARGE = int64_t(4) << 20;
void ask_for_large_pages(void *data, int64_t bytes);

// A tensor that someone else owns.
class View {
public:
    View() = default;
    explicit View(AtenTensorHandle handle) : handle_(handle) {}

    explicit operator bool() const { return handle_ != nullptr; }
    AtenTensorHandle handle() const { return handle_; }

    int64_t ndim() const { int64_t n; check(aoti_torch_get_dim(handle_, &n)); return n; }
    int64_t numel() const { int64_t n; check(aoti_torch_get_numel(handle_, &n)); return n; }
    const int64_t *sizes() const { int64_t *p; check(aoti_torch_get_sizes(handle_, &p)); return p; }
    const int64_t *strides() const { int64_t *p; check(aoti_torch_get_strides(handle_, &p)); return p; }
    // Storage may have been freed behind a tensor's back (`untyped_storage().resize_(0)`).
    void *data() const {
        void *p;
        int64_t held;
        check(aoti_torch_get_data_ptr(handle_, &p));
        check(aoti_torch_get_storage_size(handle_, &held));
        STD_TORCH_CHECK((p && held > 0) || numel() == 0, "the storage of a tensor has been freed");
        return p;
    }
    Type type() const {
        int32_t code;
        check(aoti_torch_get_dtype(handle_, &code));
        for (int t = 0; t < TYPES; ++t)
            if (code == torch_dtype(Type(t))) return Type(t);
        STD_TORCH_CHECK(false, "normkit's kernels take float32, float64, bfloat16 and float16");
    }
    // Are axes [from, ndim) one block of memory?
    bool dense(int64_t from = 0) const {
        const int64_t *size = sizes(), *stride = strides();
        int64_t step = 1;
        for (int64_t a = ndim() - 1; a >= from; --a) {
            if (size[a] != 1 && stride[a] != step) return numel() == 0;
            step *= size[a];
        }
        return true;
    }
    class Tensor contiguous() const;

protected:
    AtenTensorHandle handle_ = nullptr;
};

// A tensor that is ours.
class Tensor : public View {
public:
    using View::View;
    Tensor(Tensor &&other) noexcept : View(other.release()) {}
    Tensor &operator=(Tensor &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Tensor() {
        if (handle_) aoti_torch_delete_tensor_object(handle_);
    }
    AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

    static Tensor empty(const int64_t *sizes, int64_t ndim, int32_t dtype) {
        constexpr int64_t MOST = 64; // torch's own limit
        STD_TORCH_CHECK(ndim <= MOST, "a tensor has at most 64 axes");
        int64_t strides[MOST], step = 1;
        for (int64_t a = ndim - 1; a >= 0; --a) {
            strides[a] = step;
            step *= sizes[a] > 1 ? sizes[a] : 1;
        }
        Tensor result;
        check(aoti_torch_empty_strided(ndim, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &result.handle_));
        return result;
    }
    static Tensor empty(const int64_t *sizes, int64_t ndim, Type type) {
        Tensor result = empty(sizes, ndim, torch_dtype(type));
        result.advise();
        return result;
    }
    static Tensor like(const View &x, Type type) { return empty(x.sizes(), x.ndim(), type); }
    static Tensor vector(int64_t n, Type type) { return empty(&n, 1, type); }

    void advise() const {
        int64_t bytes;
        check(aoti_torch_get_storage_size(handle_, &bytes));
        if (bytes >= LARGE) ask_for_large_pages(data(), bytes);
    }
};

// The same numbers in one block of memory.
inline Tensor View::contiguous() const {
    Tensor copy = Tensor::like(*this, type());
    check(aoti_torch_copy_(copy.handle(), handle_, 0));
    return copy;
}

// Arguments off the stack, one after the other.
class Arguments {
public:
    explicit Arguments(StableIValue *stack) : stack_(stack) {}
    Tensor tensor() { return Tensor(torch::stable::detail::to<AtenTensorHandle>(*stack_++)); }
    Tensor optional_tensor() {
        auto *inner = torch::stable::detail::to<StableIValue *>(*stack_++);
        if (!inner) return Tensor();
        Tensor result(torch::stable::detail::to<AtenTensorHandle>(*inner));
        delete inner;
        return result;
    }
    int64_t integer() { return torch::stable::detail::to<int64_t>(*stack_++); }
    double number() { return torch::stable::detail::to<double>(*stack_++); }
    bool boolean() { return torch::stable::detail::to<bool>(*stack_++); }

private:
    StableIValue *stack_;
};

inline StableIValue returned(Tensor &&result) { return torch::stable::detail::from(result.release()); }

// Run body(begin, end) over [0, n) in parallel where there is enough work: `each` numbers for each of n.
template <class Body> void parallel(int64_t n, int64_t each, const Body &body) {
    if (n * each <= GRAIN || n <= 1) {
        if (n > 0) body(0, n);
        return;
    }
    const int64_t grain = each >= GRAIN ? 1 : GRAIN / (each > 0 ? each : 1);
    check(torch_parallel_for(
        0, n, grain,
        [](int64_t begin, int64_t end, void *context) { (*static_cast<const Body *>(context))(begin, end); },
        const_cast<void *>(static_cast<const void *>(&body))));
}

inline Type compute(Type type) { return type == F64 ? F64 : F32; }
inline int64_t bytes(Type type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }

// The dtype of x + residual; residual may be missing.
Type total_type(const View &x, const View &residual);
void run(const RowsCall &call);
void run(const RowsBackwardCall &call);

// The kernels for this machine.
const Kernels &kernels();
int64_t last_level_cache();

// The operators.
using Boxed = void(StableIValue *, uint64_t, uint64_t);
Boxed rows, rows_train, rows_out, rows_add, rows_add_train, rows_add_out, rows_backward;
Boxed groups, groups_out, groups_backward, update_running, linear;

} // namespace normkit
