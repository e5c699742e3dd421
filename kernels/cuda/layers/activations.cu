// Activations and their gradients on flat spans, and SwiGLU. All are bandwidth-bound.
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/span.cuh"

namespace {

// ---- GELU and squared ReLU

template <class T, activation ACTIVATION> struct forward_step {
    T *out;
    const T *x;

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> value = load<WIDTH>(x + i);
        for (int k = 0; k < WIDTH; k++)
            value.x[k] = activate(ACTIVATION, value.x[k]);
        store(out + i, value);
    }
};

template <class T, activation ACTIVATION> struct backward_step {
    T *dx;
    const T *dout, *x;

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> value = load<WIDTH>(x + i), gradient = load<WIDTH>(dout + i);
        for (int k = 0; k < WIDTH; k++)
            gradient.x[k] *= activation_derivative(ACTIVATION, value.x[k]);
        store(dx + i, gradient);
    }
};

template <activation ACTIVATION, class Args>
enum status forward(const char *name, struct stream *stream, const Args *args) {
    bool aligned = is_aligned(args->out) && is_aligned(args->x);
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        forward_step<T, ACTIVATION> step = {static_cast<T *>(args->out), static_cast<const T *>(args->x)};
        return over_span<widest_access<T>()>(name, stream, step, args->n, aligned);
    });
}

template <activation ACTIVATION, class Args>
enum status backward(const char *name, struct stream *stream, const Args *args) {
    bool aligned = is_aligned(args->dx) && is_aligned(args->dout) && is_aligned(args->x);
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        backward_step<T, ACTIVATION> step = {static_cast<T *>(args->dx), static_cast<const T *>(args->dout),
                                             static_cast<const T *>(args->x)};
        return over_span<widest_access<T>()>(name, stream, step, args->n, aligned);
    });
}

// ---- SwiGLU

// Computes elements of out, (N, F), from rows of x with 2 F elements. Elements [i, i + WIDTH) of out are
// within one row, since WIDTH divides F.
template <class T> struct swiglu_step {
    T *out;
    const T *x;
    size_t F;

    template <int WIDTH> __device__ void at(size_t i) const {
        const T *row = x + i / F * F;
        floats<WIDTH> gate = load<WIDTH>(row + i), up = load<WIDTH>(row + F + i);
        for (int k = 0; k < WIDTH; k++)
            up.x[k] *= silu(gate.x[k]).value;
        store(out + i, up);
    }
};

template <class T> struct swiglu_backward_step {
    T *dx, *out; // out may be NULL or dout
    const T *dout, *x;
    size_t F;

    template <int WIDTH> __device__ void at(size_t i) const {
        size_t at = i / F * F + i;
        floats<WIDTH> gate = load<WIDTH>(x + at), up = load<WIDTH>(x + at + F), again;
        floats<WIDTH> gradient = load<WIDTH>(dout + i);
        for (int k = 0; k < WIDTH; k++) {
            silu_terms terms = silu(gate.x[k]);
            again.x[k] = up.x[k] * terms.value; // as in swiglu_forward, with the same bits
            gate.x[k] = gradient.x[k] * up.x[k] * terms.derivative;
            up.x[k] = gradient.x[k] * terms.value;
        }
        store_whole(dx + at, gate);
        store_whole(dx + at + F, up);
        if (out)
            store_whole(out + i, again);
    }
};

} // namespace

extern "C" enum status cuda_gelu_forward(struct stream *stream, const struct gelu_forward_args *args) {
    return forward<ACTIVATION_GELU>("gelu_forward", stream, args);
}

extern "C" enum status cuda_gelu_backward(struct stream *stream, const struct gelu_backward_args *args) {
    return backward<ACTIVATION_GELU>("gelu_backward", stream, args);
}

extern "C" enum status cuda_relu_squared_forward(struct stream *stream,
                                                 const struct relu_squared_forward_args *args) {
    return forward<ACTIVATION_RELU_SQUARED>("relu_squared_forward", stream, args);
}

extern "C" enum status cuda_relu_squared_backward(struct stream *stream,
                                                  const struct relu_squared_backward_args *args) {
    return backward<ACTIVATION_RELU_SQUARED>("relu_squared_backward", stream, args);
}

extern "C" enum status cuda_swiglu_forward(struct stream *stream, const struct swiglu_forward_args *args) {
    size_t F = static_cast<size_t>(args->F), n = static_cast<size_t>(args->N) * F;
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        bool aligned = is_aligned(args->out) && is_aligned(args->x) && F % width == 0;
        swiglu_step<T> step = {static_cast<T *>(args->out), static_cast<const T *>(args->x), F};
        return over_span<width>("swiglu_forward", stream, step, n, aligned);
    });
}

extern "C" enum status cuda_swiglu_backward(struct stream *stream, const struct swiglu_backward_args *args) {
    size_t F = static_cast<size_t>(args->F), n = static_cast<size_t>(args->N) * F;
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        bool aligned = is_aligned(args->dx) && is_aligned(args->dout) && is_aligned(args->x) &&
                       is_aligned(args->out) && F % width == 0;
        swiglu_backward_step<T> step = {static_cast<T *>(args->dx), static_cast<T *>(args->out),
                                        static_cast<const T *>(args->dout), static_cast<const T *>(args->x),
                                        F};
        return over_span<width>("swiglu_backward", stream, step, n, aligned);
    });
}
