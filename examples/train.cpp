// Trains h = tanh(W h + x) with the loops of a plan: ./train plan.json
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>
using Json = nlohmann::json;
using Vector = std::vector<double>;
const int N = 8;
struct Trainer {
  Vector W = Vector(N * N), dW, h, dh;                // weights, their gradient, the state, its gradient
  std::map<std::string, std::map<long, Vector>> kept;  // tier -> number of the state -> state
  std::map<long, Vector> tape;                         // step -> the state before it
  double loss = 0;
  Vector step(const Vector& h, long t) const {
    Vector out(N);
    for (int i = 0; i < N; i++) {
      double sum = std::sin(0.1 * (t + 1) * (i + 1));
      for (int j = 0; j < N; j++) sum += W[i * N + j] * h[j];
      out[i] = std::tanh(sum);
    }
    return out;
  }
  void reverse(long t) {  // the loss of a step is half the square of its new state
    const Vector before = tape.at(t), out = step(before, t);
    Vector da(N);
    for (int i = 0; i < N; i++) {
      loss += 0.5 * out[i] * out[i];
      da[i] = (dh[i] + out[i]) * (1 - out[i] * out[i]);
    }
    dh.assign(N, 0);
    for (int i = 0; i < N; i++)
      for (int j = 0; j < N; j++) {
        dW[i * N + j] += da[i] * before[j];
        dh[j] += W[i * N + j] * da[i];
      }
    tape.erase(t);
  }
  void execute(const Json& items, long offset = 0) {
    for (const Json& item : items) {
      const std::string action = item["action"], tier = item.value("tier", "");
      const long first = offset + item.value("start", 0L), last = offset + item.value("stop", 0L);
      const long state = offset + item.value("state", 0L), stride = item.value("stride", 1L);
      if (action == "loop") {
        for (long t = first; stride > 0 ? t < last : t > last; t += stride) execute(item["body"], t);
      } else if (action == "advance" || action == "record") {
        for (long t = first; t < last; t++) {
          if (action == "record") tape[t] = h;
          h = step(h, t);
        }
      } else if (action == "backward") {
        for (long t = last - 1; t >= first; t--) reverse(t);
      } else if (action == "save") {
        kept[tier][state] = h;
      } else if (action == "load") {
        h = kept[tier].at(state);
      } else if (action == "free") {
        kept[tier].erase(state);
      } else {  // transfer
        for (long moved : item["states"])
          kept[item["target"]].insert(kept[item["source"]].extract(offset + moved));
      }
    }
  }
};

int main(int, char** arguments) {
  const Json plan = Json::parse(std::ifstream(arguments[1]));
  Trainer net;
  for (int i = 0; i < N * N; i++) net.W[i] = 0.5 * std::cos(i);
  for (int epoch = 0; epoch < 3; epoch++) {
    net.h = net.dh = Vector(N), net.dW = Vector(N * N), net.loss = 0;
    net.execute(plan["regular"]["loops"]);
    for (int i = 0; i < N * N; i++) net.W[i] -= 1e-3 * net.dW[i];
    std::printf("loss %.15g\n", net.loss);
  }
  for (double value : net.dW) std::printf("%.15g\n", value);
}
