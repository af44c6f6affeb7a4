typedef long long int64;

extern "C" __global__ void __launch_bounds__(256)
transpose_f32(const float* __restrict__ x, float* __restrict__ y, const int64 n, const int64 m) {
  const int64 across = blockIdx.x;
  const int64 down = blockIdx.y;
  const int thread = threadIdx.x;
  __shared__ __align__(16) float tile[1056];
  const int lane = thread % 32;
  const int line = thread / 32;
  for (int r = line; r < 32; r += 8) {
    const int64 i = down * 32 + (int64)r;
    const int64 j = across * 32 + (int64)lane;
    if (i < n && j < m) {
      tile[r * 33 + lane] = x[i * m + j];
    }
  }
  __syncthreads();
  for (int s = line; s < 32; s += 8) {
    const int64 u = down * 32 + (int64)lane;
    const int64 v = across * 32 + (int64)s;
    if (u < n && v < m) {
      y[v * n + u] = tile[lane * 33 + s];
    }
  }
}
