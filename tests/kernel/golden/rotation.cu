extern "C" __global__ void __launch_bounds__(256)
s0_pointwise(const float* __restrict__ T0, float* __restrict__ T4, const int blocks, const int groups) {
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  if (block * 512 + 512 <= groups) {
    float x0_1[8];
    #pragma unroll
    for (int step_2 = 0; step_2 < 2; ++step_2) {
      const int k0g_3 = block * 512 + step_2 * 256 + thread;
      read_wide<4>(x0_1 + step_2 * 4, T0 + k0g_3 * 4);
      const float v0_4 = x0_1[step_2 * 4];
      const float v0_5 = x0_1[step_2 * 4 + 1];
      const float v0_6 = x0_1[step_2 * 4 + 2];
      const float v0_7 = x0_1[step_2 * 4 + 3];
    }
    #pragma unroll
    for (int step_8 = 0; step_8 < 2; ++step_8) {
      const int k0g_9 = block * 512 + step_8 * 256 + thread;
      const float v0_10 = x0_1[step_8 * 4];
      const float v0_11 = x0_1[step_8 * 4 + 1];
      const float v0_12 = x0_1[step_8 * 4 + 2];
      const float v0_13 = x0_1[step_8 * 4 + 3];
      float v3_14 = 0.0f;
      float v3_15 = 0.0f;
      float v3_16 = 0.0f;
      float v3_17 = 0.0f;
      if (k0g_9 * 4 < 2048) {
        float x0_18[4];
        read_wide<4>(x0_18, T0 + k0g_9 * 4 + 2048);
        const float v0_19 = x0_18[0];
        const float v0_20 = x0_18[1];
        const float v0_21 = x0_18[2];
        const float v0_22 = x0_18[3];
        v3_14 = v0_19;
        v3_15 = v0_20;
        v3_16 = v0_21;
        v3_17 = v0_22;
      } else {
        float x0_23[4];
        read_wide<4>(x0_23, T0 + k0g_9 * 4 - 2048);
        const float v0_24 = x0_23[0];
        const float v0_25 = x0_23[1];
        const float v0_26 = x0_23[2];
        const float v0_27 = x0_23[3];
        v3_14 = v0_24;
        v3_15 = v0_25;
        v3_16 = v0_26;
        v3_17 = v0_27;
      }
      const float v4_28 = v0_10 + v3_14;
      const float v4_29 = v0_11 + v3_15;
      const float v4_30 = v0_12 + v3_16;
      const float v4_31 = v0_13 + v3_17;
      float y_32[4];
      y_32[0] = v4_28;
      y_32[1] = v4_29;
      y_32[2] = v4_30;
      y_32[3] = v4_31;
      write_wide<4>(T4 + k0g_9 * 4, y_32);
    }
  }
  if (groups < block * 512 + 512) {
    for (int step_33 = 0; step_33 < 2; ++step_33) {
      if (block * 512 + step_33 * 256 + thread < groups) {
        const int k0g_34 = block * 512 + step_33 * 256 + thread;
        float x0_35[4];
        read_wide<4>(x0_35, T0 + k0g_34 * 4);
        const float v0_36 = x0_35[0];
        const float v0_37 = x0_35[1];
        const float v0_38 = x0_35[2];
        const float v0_39 = x0_35[3];
        float v3_40 = 0.0f;
        float v3_41 = 0.0f;
        float v3_42 = 0.0f;
        float v3_43 = 0.0f;
        if (k0g_34 * 4 < 2048) {
          float x0_44[4];
          read_wide<4>(x0_44, T0 + k0g_34 * 4 + 2048);
          const float v0_45 = x0_44[0];
          const float v0_46 = x0_44[1];
          const float v0_47 = x0_44[2];
          const float v0_48 = x0_44[3];
          v3_40 = v0_45;
          v3_41 = v0_46;
          v3_42 = v0_47;
          v3_43 = v0_48;
        } else {
          float x0_49[4];
          read_wide<4>(x0_49, T0 + k0g_34 * 4 - 2048);
          const float v0_50 = x0_49[0];
          const float v0_51 = x0_49[1];
          const float v0_52 = x0_49[2];
          const float v0_53 = x0_49[3];
          v3_40 = v0_50;
          v3_41 = v0_51;
          v3_42 = v0_52;
          v3_43 = v0_53;
        }
        const float v4_54 = v0_36 + v3_40;
        const float v4_55 = v0_37 + v3_41;
        const float v4_56 = v0_38 + v3_42;
        const float v4_57 = v0_39 + v3_43;
        float y_58[4];
        y_58[0] = v4_54;
        y_58[1] = v4_55;
        y_58[2] = v4_56;
        y_58[3] = v4_57;
        write_wide<4>(T4 + k0g_34 * 4, y_58);
      }
    }
  }
}
