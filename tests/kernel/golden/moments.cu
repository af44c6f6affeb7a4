typedef long long int64;

extern "C" __global__ void __launch_bounds__(96)
moments(const float* __restrict__ x, float* __restrict__ mean, float* __restrict__ variance, const int64 n, const int64 m, const int64 blocks) {
  const int64 block = blockIdx.x;
  const int thread = threadIdx.x;
  for (int64 row = block; row < n; row += blocks) {
    float count = 0.0f;
    float average = 0.0f;
    float spread = 0.0f;
    for (int64 j = (int64)thread; j < m; j += 96) {
      const float value = x[row * m + j];
      const float delta = value - average;
      count += 1.0f;
      average += delta / count;
      spread += delta * (value - average);
    }
    // combined over the block
    #pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const bool upper = threadIdx.x & offset;
      const float count_other = __shfl_xor_sync(0xffffffffu, count, offset);
      const float a_count = upper ? count_other : count;
      const float b_count = upper ? count : count_other;
      const float average_other = __shfl_xor_sync(0xffffffffu, average, offset);
      const float a_mean = upper ? average_other : average;
      const float b_mean = upper ? average : average_other;
      const float spread_other = __shfl_xor_sync(0xffffffffu, spread, offset);
      const float a_spread = upper ? spread_other : spread;
      const float b_spread = upper ? spread : spread_other;
      count = a_count + b_count;
      average = a_mean + (b_mean - a_mean) * (a_count + b_count == 0.0f ? a_count + b_count : b_count / (a_count + b_count));
      spread = a_spread + b_spread + (b_mean - a_mean) * (b_mean - a_mean) * a_count * (a_count + b_count == 0.0f ? a_count + b_count : b_count / (a_count + b_count));
    }
    __syncthreads();
    __shared__ float count_of_warp[3];
    __shared__ float average_of_warp[3];
    __shared__ float spread_of_warp[3];
    if (threadIdx.x % 32 == 0) {
      count_of_warp[threadIdx.x / 32] = count;
      average_of_warp[threadIdx.x / 32] = average;
      spread_of_warp[threadIdx.x / 32] = spread;
    }
    __syncthreads();
    count = count_of_warp[0];
    average = average_of_warp[0];
    spread = spread_of_warp[0];
    for (int warp = 1; warp < 3; ++warp) {
      const float b_count = count_of_warp[warp];
      const float b_mean = average_of_warp[warp];
      const float b_spread = spread_of_warp[warp];
      const float count_next = count + b_count;
      const float average_next = average + (b_mean - average) * (count + b_count == 0.0f ? count + b_count : b_count / (count + b_count));
      const float spread_next = spread + b_spread + (b_mean - average) * (b_mean - average) * count * (count + b_count == 0.0f ? count + b_count : b_count / (count + b_count));
      count = count_next;
      average = average_next;
      spread = spread_next;
    }
    if (thread == 0) {
      mean[row] = average;
      variance[row] = spread / count;
    }
  }
}
