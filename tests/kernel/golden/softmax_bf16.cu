typedef long long int64;

struct bfloat16 { unsigned short bits; };

template <typename To, typename From>
__device__ __forceinline__ To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "sizes");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

__device__ __forceinline__ float to_float(bfloat16 x) { return __uint_as_float((unsigned int)x.bits << 16); }

template <typename T> __device__ __forceinline__ unsigned int rounded_pair(float low, float high);

template <> __device__ __forceinline__ unsigned int rounded_pair<bfloat16>(float low, float high) {
  unsigned int pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ bfloat16 to_bfloat16(float x) {
  return bfloat16{(unsigned short)rounded_pair<bfloat16>(x, 0.0f)};
}

template <typename T>
__device__ __forceinline__ T maximum(T a, T b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float maximum(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

template <int bytes> struct Raw;
template <> struct Raw<1> { typedef unsigned char type; };
template <> struct Raw<2> { typedef unsigned short type; };
template <> struct Raw<4> { typedef unsigned int type; };
template <> struct Raw<8> { typedef uint2 type; };
template <> struct Raw<16> { typedef uint4 type; };

__device__ __forceinline__ unsigned char load_once(const unsigned char* from) {
  unsigned short raw;
  asm volatile("ld.global.nc.L1::no_allocate.u8 %0, [%1];"
      : "=h"(raw) : "l"(__cvta_generic_to_global(from)));
  return (unsigned char)raw;
}
__device__ __forceinline__ unsigned short load_once(const unsigned short* from) {
  unsigned short raw;
  asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];"
      : "=h"(raw) : "l"(__cvta_generic_to_global(from)));
  return raw;
}
__device__ __forceinline__ unsigned int load_once(const unsigned int* from) {
  unsigned int raw;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];"
      : "=r"(raw) : "l"(__cvta_generic_to_global(from)));
  return raw;
}
__device__ __forceinline__ uint2 load_once(const uint2* from) {
  uint2 raw;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
      : "=r"(raw.x), "=r"(raw.y) : "l"(__cvta_generic_to_global(from)));
  return raw;
}
__device__ __forceinline__ uint4 load_once(const uint4* from) {
  uint4 raw;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w) : "l"(__cvta_generic_to_global(from)));
  return raw;
}

template <int width, typename T>
__device__ __forceinline__ void read_wide_once(T* to, const T* from) {
  constexpr int bytes = width * sizeof(T) < 16 ? width * sizeof(T) : 16;
  constexpr int count = bytes / sizeof(T);
  typedef typename Raw<bytes>::type raw;
  #pragma unroll
  for (int k = 0; k < width; k += count) {
    const raw whole = load_once((const raw*)(from + k));
    if constexpr (sizeof(T) == 2 && bytes >= 4) {
      struct Words { unsigned int values[bytes / 4]; };
      const Words words = bit_cast<Words>(whole);
      #pragma unroll
      for (int i = 0; i < count; ++i) to[k + i] = bit_cast<T>((unsigned short)(words.values[i / 2] >> i % 2 * 16));
    } else {
      struct Packed { T values[count]; };
      const Packed packed = bit_cast<Packed>(whole);
      #pragma unroll
      for (int i = 0; i < count; ++i) to[k + i] = packed.values[i];
    }
  }
}

template <int width, typename T>
__device__ __forceinline__ void write_wide_streaming(T* to, const T* from) {
  constexpr int bytes = width * sizeof(T) < 16 ? width * sizeof(T) : 16;
  constexpr int count = bytes / sizeof(T);
  struct Packed { T values[count]; };
  typedef typename Raw<bytes>::type raw;
  #pragma unroll
  for (int k = 0; k < width; k += count) {
    Packed packed;
    #pragma unroll
    for (int i = 0; i < count; ++i) packed.values[i] = from[k + i];
    __stcs((raw*)(to + k), bit_cast<raw>(packed));
  }
}

extern "C" __global__ void __launch_bounds__(128, 2)
softmax_bf16_4096(const bfloat16* __restrict__ x, bfloat16* __restrict__ y, const int64 rows) {
  const int64 row = blockIdx.x;
  const int thread = threadIdx.x;
  // softmax over the last axis: the row stays in registers
  const int64 start = row * 4096 + (int64)thread * 8;
  bfloat16 raw[8];
  float values[32];
  float most = __int_as_float(0xff800000);
  #pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) {
    read_wide_once<8>(raw, x + start + (int64)chunk * 1024);
    #pragma unroll
    for (int k = 0; k < 8; ++k) {
      values[chunk * 8 + k] = to_float(raw[k]);
      most = maximum(most, values[chunk * 8 + k]);
    }
  }
  // combined over the block
  #pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float right0 = __shfl_xor_sync(0xffffffffu, most, offset);
    most = maximum(most, right0);
  }
  __shared__ float most_of_warp[4];
  if (threadIdx.x % 32 == 0) {
    most_of_warp[threadIdx.x / 32] = most;
  }
  __syncthreads();
  most = most_of_warp[threadIdx.x % 4];
  #pragma unroll
  for (int offset = 1; offset < 4; offset *= 2) {
    const float right0 = __shfl_xor_sync(0xffffffffu, most, offset);
    most = maximum(most, right0);
  }
  float total = 0.0f;
  #pragma unroll
  for (int j = 0; j < 32; ++j) {
    values[j] = expf(values[j] - most);
    total += values[j];
  }
  // combined over the block
  #pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float right0 = __shfl_xor_sync(0xffffffffu, total, offset);
    total = total + right0;
  }
  __shared__ float total_of_warp[4];
  if (threadIdx.x % 32 == 0) {
    total_of_warp[threadIdx.x / 32] = total;
  }
  __syncthreads();
  total = total_of_warp[threadIdx.x % 4];
  #pragma unroll
  for (int offset = 1; offset < 4; offset *= 2) {
    const float right0 = __shfl_xor_sync(0xffffffffu, total, offset);
    total = total + right0;
  }
  const float scale = 1.0f / total;
  #pragma unroll
  for (int o = 0; o < 4; ++o) {
    #pragma unroll
    for (int q = 0; q < 8; ++q) {
      raw[q] = to_bfloat16(values[o * 8 + q] * scale);
    }
    write_wide_streaming<8>(y + start + (int64)o * 1024, raw);
  }
}
