// C = A x transpose(B): bf16 in, 32-bit floats out, on tensor cores. What a model does while blocks are copied, for measuring how much
// the copies slow it down; it is no match for a tuned library. A is m x k, B is n x k, C is m x n, all by rows; m and n are multiples of
// 128, k is one of 32. A grid of (m / 128) * (n / 128) blocks of 256 threads.
//
// Built by NVRTC without any header (tests/nvrtc/run --write makes matmul.ptx of it); a C++ compiler takes it too
// (tests/nvrtc/emulate_matmul.cpp), which is how it is tested where there is no GPU.

#define TILE 128u
#define DEPTH 32u
// Words (pairs of bf16) of a row in shared memory: 16 and 4 more, so that eight rows lie in different banks.
#define PITCH 20u

// Sixteen products of a warp's fragments. The emulation brings its own.
#ifndef TERRACE_EMULATED
__device__ __forceinline__ void multiply(float *c, const unsigned int *a, const unsigned int *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

extern "C" __global__ void __launch_bounds__(256)
    terrace_matmul(const uint4 *a, const uint4 *b, float *c, unsigned long long m, unsigned long long n,
                   unsigned long long k) {
  __shared__ __align__(16) unsigned int held_a[TILE * PITCH];
  __shared__ __align__(16) unsigned int held_b[TILE * PITCH];
  unsigned int thread = threadIdx.x, lane = thread % 32u, warp = thread / 32u;
  // Two rows of four warps: each has 64 x 32 of the block's 128 x 128.
  unsigned int warp_m = warp / 4u * 64u, warp_n = warp % 4u * 32u;
  unsigned int columns = (unsigned int)(n / TILE);
  unsigned long long first_m = (unsigned long long)(blockIdx.x / columns) * TILE;
  unsigned long long first_n = (unsigned long long)(blockIdx.x % columns) * TILE;
  if (first_m >= m) return;
  // A row of a tile is 4 x 16 bytes: 512 of them, two for each thread.
  unsigned int row = thread / 4u, part = thread % 4u;
  unsigned long long row_units = k / 8u;
  const uint4 *next_a = a + (first_m + row) * row_units + part;
  const uint4 *next_b = b + (first_n + row) * row_units + part;
  unsigned long long lower = 64u * row_units;
  uint4 a0 = next_a[0], a1 = next_a[lower], b0 = next_b[0], b1 = next_b[lower];
  float sums[4][4][4];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums[i][j][e] = 0.0f;
  unsigned int group = lane / 4u, pair = lane % 4u;
  for (unsigned long long done = 0; done < k; done += DEPTH) {
    *(uint4 *)&held_a[row * PITCH + part * 4u] = a0;
    *(uint4 *)&held_a[(row + 64u) * PITCH + part * 4u] = a1;
    *(uint4 *)&held_b[row * PITCH + part * 4u] = b0;
    *(uint4 *)&held_b[(row + 64u) * PITCH + part * 4u] = b1;
    __syncthreads();
    if (done + DEPTH < k) {
      // The next tile comes while this one is multiplied.
      next_a += DEPTH / 8u;
      next_b += DEPTH / 8u;
      a0 = next_a[0];
      a1 = next_a[lower];
      b0 = next_b[0];
      b1 = next_b[lower];
    }
#pragma unroll
    for (unsigned int step = 0; step < DEPTH / 2u; step += 8u) {
      unsigned int of_a[4][4], of_b[4][2];
#pragma unroll
      for (unsigned int i = 0; i < 4u; i++) {
        const unsigned int *from = held_a + (warp_m + i * 16u + group) * PITCH + step + pair;
        of_a[i][0] = from[0];
        of_a[i][1] = from[8u * PITCH];
        of_a[i][2] = from[4];
        of_a[i][3] = from[8u * PITCH + 4u];
      }
#pragma unroll
      for (unsigned int j = 0; j < 4u; j++) {
        const unsigned int *from = held_b + (warp_n + j * 8u + group) * PITCH + step + pair;
        of_b[j][0] = from[0];
        of_b[j][1] = from[4];
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) multiply(sums[i][j], of_a[i], of_b[j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (unsigned int i = 0; i < 4u; i++)
#pragma unroll
    for (unsigned int j = 0; j < 4u; j++) {
      float *to = c + (first_m + warp_m + i * 16u + group) * n + first_n + warp_n + j * 8u + pair * 2u;
      to[0] = sums[i][j][0];
      to[1] = sums[i][j][1];
      to[8u * n] = sums[i][j][2];
      to[8u * n + 1u] = sums[i][j][3];
    }
}
