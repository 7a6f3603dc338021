// Runs a recorded forward: a list of products, attentions and elementwise steps on fixed addresses.
//
// The recording is made by tape.py. Each step is kSlots 64-bit numbers, the first its kind; addresses are
// those of tensors that the tape keeps alive. Only the cache's length and the mask change from run to run.

#include <cstdint>
#include <cstring>

extern "C" {
void eagle_linear(int, const void*, const float*, const float*, const float*, float*, int64_t, int64_t,
                  int64_t, int);
void eagle_gated_mlp(int, const void*, const void*, const float*, const float*, float*, float*, int64_t,
                     int64_t, int64_t, int64_t, int);
void eagle_rms_norm(const float*, const float*, float*, int64_t, int64_t, float);
void eagle_attention(const float*, int64_t, int64_t, const float*, int64_t, int64_t, const float*,
                     int64_t, int64_t, const float*, int64_t, float*, int64_t, int64_t, int64_t,
                     int64_t, int64_t, float, int);
}

namespace {

constexpr int kSlots = 28;
constexpr int kDims = 5;
constexpr int64_t kWidest = 512;  // head sizes that rotate() knows; program.py

enum Kind : int64_t { kLinear, kGatedMlp, kRmsNorm, kAttention, kAppend, kAdd, kMul, kSub, kNeg, kCopy, kRotate };

template <class T>
T* at(int64_t address) {
  return reinterpret_cast<T*>(address);
}

double as_double(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// slots 1..3: addresses of out, a, b; then kDims sizes, strides of out, of a, of b. The last dimension is innermost.
template <class Operation>
void elementwise(const int64_t* s, Operation operation) {
  const int64_t *sizes = s + 4, *to = sizes + kDims, *from_a = to + kDims, *from_b = from_a + kDims;
  float* out = at<float>(s[1]);
  const float *a = at<const float>(s[2]), *b = at<const float>(s[3]);
  const int64_t n = sizes[4];
  for (int64_t i = 0; i < sizes[0]; ++i)
    for (int64_t j = 0; j < sizes[1]; ++j)
      for (int64_t k = 0; k < sizes[2]; ++k)
        for (int64_t l = 0; l < sizes[3]; ++l) {
          float* o = out + i * to[0] + j * to[1] + k * to[2] + l * to[3];
          const float* x = a + i * from_a[0] + j * from_a[1] + k * from_a[2] + l * from_a[3];
          const float* y = b + i * from_b[0] + j * from_b[1] + k * from_b[2] + l * from_b[3];
          if (to[4] == 1 && from_a[4] == 1 && from_b[4] == 1) {
#pragma GCC ivdep
            for (int64_t m = 0; m < n; ++m) o[m] = operation(x[m], y[m]);
          } else {
            for (int64_t m = 0; m < n; ++m)
              o[m * to[4]] = operation(x[m * from_a[4]], y[m * from_b[4]]);
          }
        }
}

// Rotary embedding: x cos + (-second half of x, first half) sin, products and sum rounded one by one, as the steps
// that it replaces do.
// slots: 1 out, 2 x, 3 cos, 4 sin, 5 heads, 6 rows, 7 width; from 8 strides of head and row of each, in that order.
void rotate(const int64_t* s) {
  const int64_t width = s[7], half = width / 2;
  float left[kWidest], right[kWidest];
  for (int64_t head = 0; head < s[5]; ++head)
    for (int64_t row = 0; row < s[6]; ++row) {
      float* out = at<float>(s[1]) + head * s[8] + row * s[9];
      const float* x = at<const float>(s[2]) + head * s[10] + row * s[11];
      const float* cosine = at<const float>(s[3]) + head * s[12] + row * s[13];
      const float* sine = at<const float>(s[4]) + head * s[14] + row * s[15];
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) left[i] = x[i] * cosine[i];
#pragma GCC ivdep
      for (int64_t i = 0; i < half; ++i) right[i] = -x[half + i] * sine[i];
#pragma GCC ivdep
      for (int64_t i = half; i < width; ++i) right[i] = x[i - half] * sine[i];
      __asm__ volatile("" ::: "memory");  // or the compiler would fuse a product with the sum
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) out[i] = left[i] + right[i];
    }
}

// Writes rows of one buffer [heads, capacity, width] behind its first ``length`` rows.
// slots: 1 buffer, 2 its head stride, 3 its row stride, 4 source, 5 and 6 its strides, 7 heads, 8 rows, 9 width.
void append(const int64_t* s, int64_t length) {
  for (int64_t head = 0; head < s[7]; ++head)
    for (int64_t row = 0; row < s[8]; ++row)
      std::memcpy(at<float>(s[1]) + head * s[2] + (length + row) * s[3],
                  at<const float>(s[4]) + head * s[5] + row * s[6], s[9] * sizeof(float));
}

}  // namespace

extern "C" {

int eagle_program_slots() { return kSlots; }

void eagle_run(const int64_t* steps, int64_t n_steps, int64_t length, const float* mask,
               int64_t mask_row, int n_threads) {
  for (int64_t i = 0; i < n_steps; ++i) {
    const int64_t* s = steps + i * kSlots;
    switch (s[0]) {
      case kLinear:
        eagle_linear(static_cast<int>(s[1]), at<void>(s[2]), at<float>(s[3]), at<float>(s[4]),
                     at<float>(s[9]), at<float>(s[5]), s[6], s[7], s[8], n_threads);
        break;
      case kGatedMlp:
        eagle_gated_mlp(static_cast<int>(s[1]), at<void>(s[2]), at<void>(s[3]), at<float>(s[4]),
                        at<float>(s[11]), at<float>(s[5]), at<float>(s[6]), s[7], s[8], s[9], s[10],
                        n_threads);
        break;
      case kRmsNorm:
        eagle_rms_norm(at<float>(s[1]), at<float>(s[2]), at<float>(s[3]), s[4], s[5],
                       static_cast<float>(as_double(s[6])));
        break;
      case kAttention:
        eagle_attention(at<float>(s[1]), s[2], s[3], at<float>(s[4]), s[5], s[6], at<float>(s[7]),
                        s[8], s[9], s[15] ? mask : nullptr, mask_row, at<float>(s[10]), s[11],
                        length + s[11], s[12], s[13], s[14],
                        static_cast<float>(as_double(s[16])), n_threads);
        break;
      case kAppend: append(s, length); break;
      case kRotate: rotate(s); break;
      case kAdd: elementwise(s, [](float a, float b) { return a + b; }); break;
      case kMul: elementwise(s, [](float a, float b) { return a * b; }); break;
      case kSub: elementwise(s, [](float a, float b) { return a - b; }); break;
      case kNeg: elementwise(s, [](float a, float) { return -a; }); break;
      case kCopy: elementwise(s, [](float a, float) { return a; }); break;
    }
  }
}

}  // extern "C"
