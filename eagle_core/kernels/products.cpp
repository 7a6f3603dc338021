// Packed weights of every form, by number.

#include "products.h"

extern "C" {

#define DECLARE(name)                                                                                            \
  void eagle_linear_##name(const void*, const float*, const float*, const float*, float*, int64_t, int64_t,     \
                           int64_t, int);                                                                       \
  void eagle_gated_mlp_##name(const void*, const void*, const float*, const float*, float*, float*, int64_t,    \
                              int64_t, int64_t, int64_t, int);

DECLARE(float32)
DECLARE(bfloat16)
DECLARE(int8)
void eagle_pack_float32(const void*, void*, int64_t, int64_t, int);
void eagle_pack_bfloat16(const void*, void*, int64_t, int64_t, int);
void eagle_pack_int8(const void*, int, void*, int64_t, int64_t, int);
int64_t eagle_int8_bytes(int64_t, int64_t);
float eagle_int8_weight(const void*, int64_t, int64_t, int64_t);

int eagle_panel_columns() { return kPanel; }

// How the weights of a panel are kept; ops.py.
enum Format { kFloat32, kBFloat16, kInt8 };

// Bytes of a packed weight.
int64_t eagle_packed_bytes(int format, int64_t n_in, int64_t n_out) {
  if (format == kInt8) return eagle_int8_bytes(n_in, n_out);
  return (n_out + kPanel - 1) / kPanel * kPanel * n_in * (format == kBFloat16 ? 2 : 4);
}

// weight: [n_out, n_in] in bfloat16 for that format, in float32 for float32; ``is_narrow``: in bfloat16.
void eagle_pack(int format, const void* weight, int is_narrow, void* packed, int64_t n_in, int64_t n_out,
                int n_threads) {
  if (format == kInt8)
    eagle_pack_int8(weight, is_narrow, packed, n_in, n_out, n_threads);
  else if (format == kBFloat16)
    eagle_pack_bfloat16(weight, packed, n_in, n_out, n_threads);
  else
    eagle_pack_float32(weight, packed, n_in, n_out, n_threads);
}

// The weight that a packed one stands for, [n_out, n_in] in float32.
void eagle_unpack(int format, const void* packed, float* weight, int64_t n_in, int64_t n_out, int n_threads) {
#pragma omp parallel for num_threads(n_threads)
  for (int64_t column = 0; column < n_out; ++column) {
    const int64_t p = column / kPanel, j = column % kPanel;
    for (int64_t k = 0; k < n_in; ++k) {
      float value;
      if (format == kInt8) {
        value = eagle_int8_weight(packed, column, k, n_in);
      } else if (format == kBFloat16) {
        const uint32_t both = static_cast<const uint32_t*>(packed)[(p * n_in + k) * kHalf + j % kHalf];
        const uint32_t bits = j < kHalf ? both << 16 : both & 0xffff0000u;
        std::memcpy(&value, &bits, 4);
      } else {
        value = static_cast<const float*>(packed)[(p * n_in + k) * kPanel + j];
      }
      weight[column * n_in + k] = value;
    }
  }
}

// bias: [n_out] or null. rows: [n_rows, n_out] that are added to the result, or null.
void eagle_linear(int format, const void* packed, const float* x, const float* bias, const float* rows,
                  float* out, int64_t n_rows, int64_t n_in, int64_t n_out, int n_threads) {
  const auto run = format == kInt8 ? eagle_linear_int8
                   : format == kBFloat16 ? eagle_linear_bfloat16 : eagle_linear_float32;
  run(packed, x, bias, rows, out, n_rows, n_in, n_out, n_threads);
}

void eagle_gated_mlp(int format, const void* gate_up, const void* down, const float* x, const float* rows,
                     float* middle, float* out, int64_t n_rows, int64_t n_in, int64_t n_mid, int64_t n_out,
                     int n_threads) {
  const auto run = format == kInt8 ? eagle_gated_mlp_int8
                   : format == kBFloat16 ? eagle_gated_mlp_bfloat16 : eagle_gated_mlp_float32;
  run(gate_up, down, x, rows, middle, out, n_rows, n_in, n_mid, n_out, n_threads);
}

}  // extern "C"
