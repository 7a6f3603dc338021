// Norms, and what is read off scores: the likeliest tokens, and a draw.

#include "vectors.h"

#include <vector>

namespace {

void rms_norm(const float* x, const float* weight, float* out, int64_t n_rows, int64_t n,
              float epsilon) {
  for (int64_t row = 0; row < n_rows; ++row, x += n, out += n) {
    Floats squares = {};
    for (int64_t i = 0; i < n; i += kHalf) squares += load(x + i) * load(x + i);
    const float scale = 1.0f / std::sqrt(sum_lanes(squares) / n + epsilon);
    for (int64_t i = 0; i < n; i += kHalf) store(out + i, load(weight + i) * (load(x + i) * scale));
  }
}

// Natural logarithm of positive numbers, to about 2 units in the last place.
inline Floats logarithm(Floats x) {
  const Words bits = (Words)x;
  Words exponent = (bits >> 23) - 126;
  Floats m = (Floats)((bits & 0x007fffffu) | 0x3f000000u);  // [0.5, 1)
  const auto is_small = m < (Floats{} + 0.707106781f);
  m = is_small ? m + m : m;
  exponent = is_small ? exponent - 1 : exponent;
  const Floats r = m - 1.0f;
  Floats p = Floats{} + 7.0376836292e-2f;
  p = p * r - 1.1514610310e-1f;
  p = p * r + 1.1676998740e-1f;
  p = p * r - 1.2420140846e-1f;
  p = p * r + 1.4249322787e-1f;
  p = p * r - 1.6668057665e-1f;
  p = p * r + 2.0000714765e-1f;
  p = p * r - 2.4999993993e-1f;
  p = p * r + 3.3333331174e-1f;
  const Floats n = __builtin_convertvector((Signed)exponent, Floats);
  Floats y = p * r * (r * r) + n * -2.12194440e-4f - 0.5f * (r * r);
  return r + y + n * 0.693359375f;
}

inline uint64_t mix(uint64_t value) {
  value *= 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// When tokens arrive by their hashes: 16 exponential numbers.
inline Floats times_of(const uint32_t hashed[kHalf]) {
  float low[kHalf], high[kHalf];
  for (int j = 0; j < kHalf; ++j) {
    low[j] = (static_cast<float>(hashed[j]) + 0.5f) * 0x1p-32f;    // u
    high[j] = (static_cast<float>(~hashed[j]) + 0.5f) * 0x1p-32f;  // 1 - u, exact where it is small
  }
  const Floats u = load(low), rest = load(high), v = 1.0f - u;
  const Floats near = v == (Floats{} + 1.0f) ? u : logarithm(v) * u / (v - 1.0f);
  return u < (Floats{} + 0.5f) ? near : Floats{} - logarithm(rest);
}

struct Arrival {
  float speed = -1.0f;
  int64_t token = 0;
};

// The first to arrive of the tokens from ``begin`` to before ``end``; token i's time is hashed from (key << 32) + i.
Arrival race(const float* probabilities, int64_t begin, int64_t end, uint64_t key) {
  Arrival best;
  for (int64_t i = begin; i < end; i += kHalf) {
    const int64_t count = end - i < kHalf ? end - i : kHalf;
    uint32_t hashed[kHalf];
#pragma GCC ivdep
    for (int j = 0; j < kHalf; ++j)
      hashed[j] = static_cast<uint32_t>(mix((key << 32) + static_cast<uint64_t>(i + j)));
    float p[kHalf] = {};
    for (int64_t j = 0; j < count; ++j) p[j] = probabilities[i + j];
    const Floats speed = load(p) / times_of(hashed);
    for (int64_t j = 0; j < count; ++j)
      if (speed[j] > best.speed) best = {speed[j], i + j};
  }
  return best;
}

// -log of the arrival times of some tokens.
void head_starts(const int64_t* tokens, int64_t n, uint64_t key, float* out) {
  for (int64_t i = 0; i < n; i += kHalf) {
    const int64_t count = n - i < kHalf ? n - i : kHalf;
    uint64_t places[kHalf] = {};
    for (int64_t j = 0; j < count; ++j) places[j] = static_cast<uint64_t>(tokens[i + j]);
    uint32_t hashed[kHalf];
#pragma GCC ivdep
    for (int j = 0; j < kHalf; ++j) hashed[j] = static_cast<uint32_t>(mix((key << 32) + places[j]));
    const Floats start = Floats{} - logarithm(times_of(hashed));
    if (count == kHalf) {
      store(out + i, start);
    } else {
      for (int64_t j = 0; j < count; ++j) out[i + j] = start[j];
    }
  }
}

// Highest of n numbers, and the sum of e^(x - highest): no number if one of them is none.
struct Softmax {
  float highest = -INFINITY, total = 0.0f;

  Softmax(const float* x, int64_t n) {
    const int64_t whole = n / kHalf * kHalf;
    Floats most = Floats{} - INFINITY;
    for (int64_t i = 0; i < whole; i += kHalf) {
      const Floats next = load(x + i);
      most = next > most ? next : most;
    }
    for (int j = 0; j < kHalf; ++j) highest = most[j] > highest ? most[j] : highest;
    for (int64_t i = whole; i < n; ++i) highest = x[i] > highest ? x[i] : highest;
    Floats sums = {};
    for (int64_t i = 0; i < whole; i += kHalf) sums += exponential(load(x + i) - highest);
    if (whole < n) {
      float rest[kHalf];
      for (int j = 0; j < kHalf; ++j) rest[j] = whole + j < n ? x[whole + j] : -INFINITY;
      sums += exponential(load(rest) - highest);
    }
    total = sum_lanes(sums);
  }
};

// The first of the highest logits, and its probability.
int64_t likeliest(const float* logits, int64_t n, float* probability) {
  const Softmax all(logits, n);
  int64_t winner = 0;
  while (winner < n - 1 && logits[winner] != all.highest) ++winner;
  *probability = 1.0f / all.total;
  return winner;
}

inline bool any(Signed lanes) {
  int64_t words[8], found = 0;
  std::memcpy(words, &lanes, sizeof words);
  for (int i = 0; i < 8; ++i) found |= words[i];
  return found != 0;
}

// The k likeliest of n >= k tokens and the logarithms of their probabilities, best first. What is no number is never
// among them unless there is nothing else; it, and what it spoils, counts as kHopeless.
constexpr float kHopeless = -1e9f;
void top(const float* logits, int64_t n, int64_t k, int64_t* ids, float* scores) {
  const Softmax all(logits, n);
  for (int64_t i = 0; i < k; ++i) ids[i] = -1, scores[i] = -INFINITY;
  const auto offer = [&](int64_t token) {
    const float score = logits[token];
    if (!(score > scores[k - 1])) return;
    int64_t place = k - 1;
    for (; place > 0 && score > scores[place - 1]; --place)
      ids[place] = ids[place - 1], scores[place] = scores[place - 1];
    ids[place] = token, scores[place] = score;
  };
  const int64_t whole = n / kHalf * kHalf;
  for (int64_t i = 0; i < whole; i += kHalf)
    if (any((Signed)(load(logits + i) > (Floats{} + scores[k - 1]))))
      for (int64_t j = i; j < i + kHalf; ++j) offer(j);
  for (int64_t j = whole; j < n; ++j) offer(j);
  const float shift = all.highest + std::log(all.total);
  int64_t unused = 0;
  for (int64_t i = 0; i < k; ++i) {
    const float score = scores[i] - shift;
    scores[i] = score > kHopeless ? score : kHopeless;
    if (ids[i] >= 0) continue;
    bool is_taken = true;
    for (; is_taken; ++unused) {
      is_taken = false;
      for (int64_t j = 0; j < k; ++j) is_taken = is_taken || ids[j] == unused;
    }
    ids[i] = unused - 1;
  }
}

}  // namespace

extern "C" {

void eagle_rms_norm(const float* x, const float* weight, float* out, int64_t n_rows, int64_t n,
                    float epsilon) {
  rms_norm(x, weight, out, n_rows, n, epsilon);
}

// The token that arrives first in an exponential race; of two at once the earlier token.
int64_t eagle_race(const float* probabilities, int64_t n, int64_t key, int n_threads) {
  constexpr int64_t kStretch = 4096;
  const int64_t n_stretches = (n + kStretch - 1) / kStretch;
  std::vector<Arrival> found(n_stretches);
#pragma omp parallel for schedule(static) num_threads(n_stretches > 1 ? n_threads : 1)
  for (int64_t i = 0; i < n_stretches; ++i) {
    const int64_t begin = i * kStretch, end = n - begin < kStretch ? n : begin + kStretch;
    found[i] = race(probabilities, begin, end, static_cast<uint64_t>(key));
  }
  Arrival best;
  for (const Arrival& one : found)
    if (one.speed > best.speed) best = one;
  return best.token;
}

void eagle_head_starts(const int64_t* tokens, int64_t n, int64_t key, float* out) {
  head_starts(tokens, n, static_cast<uint64_t>(key), out);
}

int64_t eagle_likeliest(const float* logits, int64_t n, float* probability) {
  return likeliest(logits, n, probability);
}

// logits: [n_rows, n]; ids and scores: [n_rows, k].
void eagle_top(const float* logits, int64_t n_rows, int64_t n, int64_t k, int64_t* ids, float* scores,
               int n_threads) {
#pragma omp parallel for schedule(static) num_threads(n_rows > 1 ? n_threads : 1)
  for (int64_t row = 0; row < n_rows; ++row)
    top(logits + row * n, n, k, ids + row * k, scores + row * k);
}

}  // extern "C"
