// The arithmetic of a GRU and of spiking neurons, in chunks, and nothing else: what a plan could take at best.
// Inputs of a chunk are multiplied by their weights at once, gradients of weights are one product for a chunk.
// Matrix products are those of PyTorch's library. The loss is the sum of squares of outputs times `scale`.
#include <torch/extension.h>
#include <cmath>
#include <vector>

using at::Tensor;

namespace {
float sigmoid(float x) { return 1.f / (1.f + std::exp(-x)); }
float *at_step(const Tensor &whole, int64_t step) { return whole.data_ptr<float>() + step * whole.stride(0); }

// Weights of inputs and of the state, biases; states has a row more than there are steps. Returns the loss.
double gru_forward(const Tensor &x, const Tensor &states, const std::vector<Tensor> &weights, Tensor &of_inputs,
                   Tensor &of_state, const Tensor &tape, double scale) {
  at::NoGradGuard guard;
  const int64_t steps = x.size(0), batch = x.size(1), size = weights[1].size(1);
  auto rows = of_inputs.view({steps * batch, 3 * size});
  at::addmm_out(rows, weights[2], x.reshape({steps * batch, x.size(2)}), weights[0].t());
  const float *bias = weights[3].data_ptr<float>();
  double loss = 0;
  for (int64_t step = 0; step < steps; step++) {
    at::mm_out(of_state, states.select(0, step), weights[1].t());
    float sum = 0;
    for (int64_t row = 0; row < batch; row++) {
      const float *a = at_step(of_inputs, step) + row * 3 * size, *c = of_state.data_ptr<float>() + row * 3 * size;
      const float *h = at_step(states, step) + row * size;
      float *out = at_step(states, step + 1) + row * size, *kept = at_step(tape, step) + row * 4 * size;
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < size; j++) {
        const float r = sigmoid(a[j] + c[j] + bias[j]);
        const float z = sigmoid(a[size + j] + c[size + j] + bias[size + j]);
        const float inner = c[2 * size + j] + bias[2 * size + j];
        const float n = std::tanh(a[2 * size + j] + r * inner);
        out[j] = n + z * (h[j] - n);
        sum += out[j] * out[j];
        kept[j] = r;
        kept[size + j] = z;
        kept[2 * size + j] = n;
        kept[3 * size + j] = inner;
      }
    }
    loss += scale * sum;
  }
  return loss;
}

void gru_backward(const Tensor &x, const Tensor &states, const std::vector<Tensor> &weights, const Tensor &tape,
                  Tensor &gradient, const Tensor &of_inputs, const Tensor &of_state, std::vector<Tensor> gradients,
                  double scale) {
  at::NoGradGuard guard;
  const int64_t steps = x.size(0), batch = x.size(1), size = weights[1].size(1);
  const float factor = 2 * scale;
  for (int64_t step = steps - 1; step >= 0; step--) {
    for (int64_t row = 0; row < batch; row++) {
      const float *h = at_step(states, step) + row * size, *out = at_step(states, step + 1) + row * size;
      const float *kept = at_step(tape, step) + row * 4 * size;
      float *g = gradient.data_ptr<float>() + row * size;
      float *a = at_step(of_inputs, step) + row * 3 * size, *c = at_step(of_state, step) + row * 3 * size;
#pragma omp simd
      for (int64_t j = 0; j < size; j++) {
        const float r = kept[j], z = kept[size + j], n = kept[2 * size + j], inner = kept[3 * size + j];
        const float all = g[j] + factor * out[j];
        const float dn = all * (1 - z) * (1 - n * n), dz = all * (h[j] - n) * z * (1 - z);
        const float dr = dn * inner * r * (1 - r);
        a[j] = c[j] = dr;
        a[size + j] = c[size + j] = dz;
        a[2 * size + j] = dn;
        c[2 * size + j] = dn * r;
        g[j] = all * z;
      }
    }
    gradient.addmm_(of_state.select(0, step), weights[1]);
  }
  auto left = of_inputs.view({steps * batch, 3 * size}), right = of_state.view({steps * batch, 3 * size});
  gradients[0].addmm_(left.t(), x.reshape({steps * batch, x.size(2)}));
  gradients[1].addmm_(right.t(), states.narrow(0, 0, steps).reshape({steps * batch, size}));
  gradients[2].add_(left.sum(0));
  gradients[3].add_(right.sum(0));
}

double lif_forward(const Tensor &x, const Tensor &membranes, const Tensor &spikes,
                   const std::vector<Tensor> &weights, Tensor &of_inputs, Tensor &of_state, double decay,
                   double threshold, double scale) {
  at::NoGradGuard guard;
  const int64_t steps = x.size(0), batch = x.size(1), size = weights[1].size(1);
  const float d = decay, limit = threshold;
  auto rows = of_inputs.view({steps * batch, size});
  at::addmm_out(rows, weights[2], x.reshape({steps * batch, x.size(2)}), weights[0].t());
  double loss = 0;
  for (int64_t step = 0; step < steps; step++) {
    at::mm_out(of_state, spikes.select(0, step), weights[1].t());
    const float *a = at_step(of_inputs, step), *c = of_state.data_ptr<float>();
    const float *v = at_step(membranes, step), *z = at_step(spikes, step);
    float *next = at_step(membranes, step + 1), *fired = at_step(spikes, step + 1), sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < batch * size; j++) {
      const float u = d * v[j] + a[j] + c[j] - limit * z[j];
      next[j] = u;
      fired[j] = u > limit ? 1.f : 0.f;
      sum += fired[j];
    }
    loss += scale * sum;
  }
  return loss;
}

void lif_backward(const Tensor &x, const Tensor &membranes, const Tensor &spikes,
                  const std::vector<Tensor> &weights, Tensor &of_membranes, Tensor &of_spikes,
                  const Tensor &of_inputs, std::vector<Tensor> gradients, double decay, double threshold,
                  double slope, double scale) {
  at::NoGradGuard guard;
  const int64_t steps = x.size(0), batch = x.size(1), size = weights[1].size(1);
  const float d = decay, limit = threshold, steep = slope, factor = 2 * scale;
  for (int64_t step = steps - 1; step >= 0; step--) {
    const float *v = at_step(membranes, step + 1), *fired = at_step(spikes, step + 1);
    float *g = of_membranes.data_ptr<float>(), *a = at_step(of_inputs, step);
    const float *s = of_spikes.data_ptr<float>();
#pragma omp simd
    for (int64_t j = 0; j < batch * size; j++) {
      const float wide = 1.f + steep * std::fabs(v[j] - limit);
      const float u = g[j] + (s[j] + factor * fired[j]) / (wide * wide);
      a[j] = u;
      g[j] = d * u;
    }
    at::mm_out(of_spikes, of_inputs.select(0, step), weights[1]);
  }
  auto rows = of_inputs.view({steps * batch, size});
  gradients[0].addmm_(rows.t(), x.reshape({steps * batch, x.size(2)}));
  gradients[1].addmm_(rows.t(), spikes.narrow(0, 0, steps).reshape({steps * batch, size}));
  gradients[2].add_(rows.sum(0));
}
} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("gru_forward", &gru_forward);
  m.def("gru_backward", &gru_backward);
  m.def("lif_forward", &lif_forward);
  m.def("lif_backward", &lif_backward);
}
