// Batch norm with the statistics of the batch, and ReLU6 after it, on rows of channels (channels-last images).
// PyTorch's own operations read and write such maps about twice as often.

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

constexpr long LANES = 64;  // floats that the inner loops take at a time, if there are fewer channels
constexpr long BLOCK = 64;  // rows of lanes that are summed in single precision

struct Layout {
    long lanes, chunks, rest;
    Layout(long rows, long channels) {
        const long together = std::max(1L, LANES / channels);
        lanes = together * channels;
        chunks = rows / together;
        rest = (rows - chunks * together) * channels;
    }
};

std::vector<float> repeated(const float* values, long channels, long lanes) {
    std::vector<float> all(lanes);
    for (long i = 0; i < lanes; ++i) all[i] = values[i % channels];
    return all;
}

// Calls add(offset, count, first, second) for each chunk, and sums what it adds, by channel.
template <class Add>
void sum_by_channel(const Layout& layout, long channels, Add add, std::vector<double>& one, std::vector<double>& two) {
    std::vector<float> first(layout.lanes), second(layout.lanes);
    auto flush = [&] {
        for (long i = 0; i < layout.lanes; ++i) {
            one[i % channels] += first[i];
            two[i % channels] += second[i];
            first[i] = second[i] = 0.0f;
        }
    };
    for (long chunk = 0; chunk < layout.chunks; ++chunk) {
        add(chunk * layout.lanes, layout.lanes, first.data(), second.data());
        if (chunk % BLOCK == BLOCK - 1) flush();
    }
    if (layout.rest) add(layout.chunks * layout.lanes, layout.rest, first.data(), second.data());
    flush();
}

template <bool Clamped>
void forward(const float* __restrict x, float* __restrict y, long rows, long channels, const float* weight,
             const float* bias, float epsilon, float* mean, float* inverse) {
    const Layout layout(rows, channels);
    std::vector<double> sums(channels), squares(channels);
    sum_by_channel(layout, channels, [x](long offset, long count, float* __restrict s, float* __restrict q) {
        const float* __restrict in = x + offset;
        for (long i = 0; i < count; ++i) { s[i] += in[i]; q[i] += in[i] * in[i]; }
    }, sums, squares);
    std::vector<float> scale(channels), shift(channels);
    for (long c = 0; c < channels; ++c) {
        const double m = sums[c] / rows, variance = std::max(0.0, squares[c] / rows - m * m);
        mean[c] = float(m);
        inverse[c] = float(1.0 / std::sqrt(variance + epsilon));
        scale[c] = weight[c] * inverse[c];
        shift[c] = bias[c] - mean[c] * scale[c];
    }
    const auto a = repeated(scale.data(), channels, layout.lanes), b = repeated(shift.data(), channels, layout.lanes);
    for (long chunk = 0; chunk <= layout.chunks; ++chunk) {
        const long count = chunk < layout.chunks ? layout.lanes : layout.rest;
        const float* __restrict in = x + chunk * layout.lanes;
        float* __restrict out = y + chunk * layout.lanes;
        const float* __restrict pa = a.data();
        const float* __restrict pb = b.data();
        for (long i = 0; i < count; ++i) {
            const float value = in[i] * pa[i] + pb[i];
            out[i] = Clamped ? std::min(std::max(value, 0.0f), 6.0f) : value;
        }
    }
}

template <bool Clamped>
void backward(const float* __restrict dy, const float* __restrict x, float* __restrict dx, long rows, long channels,
              const float* weight, const float* bias, const float* mean, const float* inverse, float* dweight,
              float* dbias) {
    const Layout layout(rows, channels);
    std::vector<float> scale(channels), shift(channels);
    for (long c = 0; c < channels; ++c) {
        scale[c] = weight[c] * inverse[c];
        shift[c] = bias[c] - mean[c] * scale[c];
    }
    const auto a = repeated(scale.data(), channels, layout.lanes), b = repeated(shift.data(), channels, layout.lanes);
    const float* __restrict pa = a.data();
    const float* __restrict pb = b.data();
    std::vector<double> sums(channels), products(channels);
    sum_by_channel(layout, channels, [=](long offset, long count, float* __restrict s, float* __restrict p) {
        const float* __restrict in = x + offset;
        const float* __restrict g = dy + offset;
        for (long i = 0; i < count; ++i) {
            const float value = in[i] * pa[i] + pb[i];
            const float gradient = !Clamped || (value > 0.0f && value < 6.0f) ? g[i] : 0.0f;
            s[i] += gradient;
            p[i] += gradient * in[i];
        }
    }, sums, products);
    std::vector<float> slope(channels), constant(channels);
    for (long c = 0; c < channels; ++c) {
        const double dw = (products[c] - mean[c] * sums[c]) * inverse[c];
        dweight[c] = float(dw);
        dbias[c] = float(sums[c]);
        slope[c] = float(-scale[c] * inverse[c] * dw / rows);
        constant[c] = float(-scale[c] * sums[c] / rows + scale[c] * inverse[c] * mean[c] * dw / rows);
    }
    const auto k = repeated(slope.data(), channels, layout.lanes), d = repeated(constant.data(), channels, layout.lanes);
    const float* __restrict pk = k.data();
    const float* __restrict pd = d.data();
    for (long chunk = 0; chunk <= layout.chunks; ++chunk) {
        const long count = chunk < layout.chunks ? layout.lanes : layout.rest;
        const float* __restrict in = x + chunk * layout.lanes;
        const float* __restrict g = dy + chunk * layout.lanes;
        float* __restrict out = dx + chunk * layout.lanes;
        for (long i = 0; i < count; ++i) {
            const float value = in[i] * pa[i] + pb[i];
            const float gradient = !Clamped || (value > 0.0f && value < 6.0f) ? g[i] : 0.0f;
            out[i] = pa[i] * gradient + pk[i] * in[i] + pd[i];
        }
    }
}

}  // namespace

extern "C" void norm_forward(const float* x, float* y, long rows, long channels, const float* weight, const float* bias,
                             float epsilon, int clamped, float* mean, float* inverse) {
    (clamped ? forward<true> : forward<false>)(x, y, rows, channels, weight, bias, epsilon, mean, inverse);
}

extern "C" void norm_backward(const float* dy, const float* x, float* dx, long rows, long channels, const float* weight,
                              const float* bias, const float* mean, const float* inverse, int clamped, float* dweight,
                              float* dbias) {
    (clamped ? backward<true> : backward<false>)(dy, x, dx, rows, channels, weight, bias, mean, inverse, dweight, dbias);
}
