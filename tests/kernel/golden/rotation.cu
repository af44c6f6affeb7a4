extern "C" __global__ void __launch_bounds__(256, 8)
s0_pointwise(const float* __restrict__ T0, float* __restrict__ T4, const int blocks, const int groups) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  if (block * 512 + 512 <= groups) {
    float x0_1[8];
    #pragma unroll
    for (int step_1 = 0; step_1 < 2; ++step_1) {
      const int k0g_1 = block * 512 + step_1 * 256 + thread;
      read_wide_constant<4>(x0_1 + step_1 * 4, T0 + k0g_1 * 4);
    }
    float y4[8];
    #pragma unroll
    for (int step_2 = 0; step_2 < 2; ++step_2) {
      const int k0g_2 = block * 512 + step_2 * 256 + thread;
      const float v0_1 = x0_1[step_2 * 4];
      const float v0_2 = x0_1[step_2 * 4 + 1];
      const float v0_3 = x0_1[step_2 * 4 + 2];
      const float v0_4 = x0_1[step_2 * 4 + 3];
      float v3_1 = 0.0f;
      float v3_2 = 0.0f;
      float v3_3 = 0.0f;
      float v3_4 = 0.0f;
      float x0_2[4];
      read_wide_constant<4>(x0_2, T0 + (k0g_2 * 4 < 2048 ? k0g_2 * 4 + 2048 : k0g_2 * 4 - 2048));
      const float v0_5 = x0_2[0];
      const float v0_6 = x0_2[1];
      const float v0_7 = x0_2[2];
      const float v0_8 = x0_2[3];
      v3_1 = v0_5;
      v3_2 = v0_6;
      v3_3 = v0_7;
      v3_4 = v0_8;
      const float v4_1 = v0_1 + v3_1;
      const float v4_2 = v0_2 + v3_2;
      const float v4_3 = v0_3 + v3_3;
      const float v4_4 = v0_4 + v3_4;
      y4[step_2 * 4] = v4_1;
      y4[step_2 * 4 + 1] = v4_2;
      y4[step_2 * 4 + 2] = v4_3;
      y4[step_2 * 4 + 3] = v4_4;
    }
    #pragma unroll
    for (int step_3 = 0; step_3 < 2; ++step_3) {
      const int k0g_3 = block * 512 + step_3 * 256 + thread;
      const float v4_5 = y4[step_3 * 4];
      const float v4_6 = y4[step_3 * 4 + 1];
      const float v4_7 = y4[step_3 * 4 + 2];
      const float v4_8 = y4[step_3 * 4 + 3];
      float y_1[4];
      y_1[0] = v4_5;
      y_1[1] = v4_6;
      y_1[2] = v4_7;
      y_1[3] = v4_8;
      write_wide<4>(T4 + k0g_3 * 4, y_1);
    }
  }
  if (groups < block * 512 + 512) {
    for (int step_4 = 0; step_4 < 2; ++step_4) {
      if (block * 512 + step_4 * 256 + thread < groups) {
        const int k0g_4 = block * 512 + step_4 * 256 + thread;
        float x0_3[4];
        read_wide_constant<4>(x0_3, T0 + k0g_4 * 4);
        const float v0_9 = x0_3[0];
        const float v0_10 = x0_3[1];
        const float v0_11 = x0_3[2];
        const float v0_12 = x0_3[3];
        float v3_5 = 0.0f;
        float v3_6 = 0.0f;
        float v3_7 = 0.0f;
        float v3_8 = 0.0f;
        float x0_4[4];
        read_wide_constant<4>(x0_4, T0 + (k0g_4 * 4 < 2048 ? k0g_4 * 4 + 2048 : k0g_4 * 4 - 2048));
        const float v0_13 = x0_4[0];
        const float v0_14 = x0_4[1];
        const float v0_15 = x0_4[2];
        const float v0_16 = x0_4[3];
        v3_5 = v0_13;
        v3_6 = v0_14;
        v3_7 = v0_15;
        v3_8 = v0_16;
        const float v4_9 = v0_9 + v3_5;
        const float v4_10 = v0_10 + v3_6;
        const float v4_11 = v0_11 + v3_7;
        const float v4_12 = v0_12 + v3_8;
        float y_2[4];
        y_2[0] = v4_9;
        y_2[1] = v4_10;
        y_2[2] = v4_11;
        y_2[3] = v4_12;
        write_wide<4>(T4 + k0g_4 * 4, y_2);
      }
    }
  }
}
