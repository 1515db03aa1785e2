// Runs the matrix product of the device suite on the CPU, a thread for each of a block's, and compares every entry. What the tensor cores do
// is done here as the PTX manual lays out the fragments of mma.m16n8k16.
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

struct Index {
  unsigned int x;
};
static thread_local Index threadIdx;
static Index blockIdx;
struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};

static std::barrier<> whole(256);
static void __syncthreads() { whole.arrive_and_wait(); }

// A warp's fragments.
struct Warp {
  std::barrier<> together{32};
  float a[16][16], b[16][8];
};
static Warp warps[8];

static float from_bf16(unsigned int half) {
  unsigned int bits = half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static void multiply(float *c, const unsigned int *a, const unsigned int *b) {
  unsigned int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  Warp &warp = warps[threadIdx.x / 32];
  for (unsigned int i = 0; i < 4; i++)
    for (unsigned int half = 0; half < 2; half++)
      warp.a[group + i % 2 * 8][pair * 2 + i / 2 * 8 + half] = from_bf16(a[i] >> (16 * half) & 0xffff);
  for (unsigned int i = 0; i < 2; i++)
    for (unsigned int half = 0; half < 2; half++)
      warp.b[pair * 2 + i * 8 + half][group] = from_bf16(b[i] >> (16 * half) & 0xffff);
  warp.together.arrive_and_wait();
  for (unsigned int i = 0; i < 4; i++)
    for (unsigned int k = 0; k < 16; k++)
      c[i] += warp.a[group + i / 2 * 8][k] * warp.b[k][pair * 2 + i % 2];
  warp.together.arrive_and_wait();
}

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads)
#define TERRACE_EMULATED
#include "../../kernels/src/bin/terrace-gpu-suite/matmul.cu"

static unsigned int element(unsigned int row, unsigned int column, unsigned int of) {
  return (row * 7 + column * 3 + of) % 5;
}

int main() {
  const unsigned int m = 256, n = 384, k = 96;
  auto fill = [&](unsigned int rows, unsigned int of) {
    std::vector<uint4> memory(rows * k / 8);
    auto *halves = reinterpret_cast<uint16_t *>(memory.data());
    for (unsigned int at = 0; at < rows * k; at++) {
      float value = (float)element(at / k, at % k, of);
      unsigned int bits;
      memcpy(&bits, &value, 4);
      halves[at] = (uint16_t)(bits >> 16);
    }
    return memory;
  };
  std::vector<uint4> a = fill(m, 0), b = fill(n, 1);
  std::vector<float> c(m * n, -1.0f);
  for (blockIdx.x = 0; blockIdx.x < m / TILE * (n / TILE); blockIdx.x++) {
    std::vector<std::thread> threads;
    for (unsigned int thread = 0; thread < 256; thread++) {
      threads.emplace_back([&, thread] {
        threadIdx.x = thread;
        terrace_matmul(a.data(), b.data(), c.data(), m, n, k);
      });
    }
    for (auto &thread : threads) thread.join();
  }
  for (unsigned int row = 0; row < m; row++)
    for (unsigned int column = 0; column < n; column++) {
      float wanted = 0;
      for (unsigned int step = 0; step < k; step++) wanted += (float)(element(row, step, 0) * element(column, step, 1));
      if (c[row * n + column] != wanted) {
        printf("row %u, column %u is %f, not %f\n", row, column, c[row * n + column], wanted);
        return 1;
      }
    }
  printf("the matrix product is right: %u x %u x %u\n", m, n, k);
  return 0;
}
