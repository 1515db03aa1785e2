// Runs the source of the gather kernel on the CPU, thread after thread, and compares every byte.
//
// Threads of the kernel share nothing, so any order of them is a possible one. With the address sanitizer an access beyond
// source or target shows, with the other one a misaligned access.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

struct Index {
  unsigned int x;
};
static Index threadIdx, blockIdx, blockDim, gridDim;
struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};

static unsigned long accesses[17];
template <typename T>
static T __ldcs(const T *from) {
  accesses[sizeof(T)]++;
  return *from;
}
template <typename T>
static void __stcs(T *to, T value) {
  *to = value;
}

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#include "../../kernels/src/cuda/gather.cu"

static uint64_t state = 42;
static unsigned int below(unsigned int bound) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned int)(state >> 33) % bound;
}

static void launch(const std::vector<Tile> &tiles, unsigned int blocks, unsigned int threads) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) terrace_gather(tiles.data(), (unsigned int)tiles.size());
}

int main() {
  unsigned long rounds = 0, copied = 0;
  for (unsigned int round = 0; round < 400; round++) {
    // Each tile has memory of its own, exactly as long as it may touch: the sanitizer guards both ends.
    unsigned int count = below(40);
    std::vector<Tile> tiles;
    std::vector<unsigned char *> memory;
    for (unsigned int i = 0; i < count; i++) {
      static const unsigned int lengths[] = {1, 15, 16, 17, 31, 100, 511, 512, 2048, 4095, 4096};
      unsigned int len = below(3) ? lengths[below(11)] : 1 + below(4096);
      unsigned int src_at = below(16), dst_at = below(2) ? src_at : below(16);
      auto *src = (unsigned char *)aligned_alloc(16, (src_at + len + 15) / 16 * 16);
      auto *dst = (unsigned char *)aligned_alloc(16, (dst_at + len + 15) / 16 * 16);
      for (unsigned int b = 0; b < len; b++) src[src_at + b] = (unsigned char)below(256);
      for (unsigned int b = 0; b < (dst_at + len + 15) / 16 * 16; b++) dst[b] = 0xA5;
      tiles.push_back({(unsigned long long)(uintptr_t)(src + src_at), (unsigned long long)(uintptr_t)(dst + dst_at), len, 0});
      memory.push_back(src);
      memory.push_back(dst);
    }
    launch(tiles, 1 + below(4), 32 * (1 + below(4)));
    for (unsigned int i = 0; i < count; i++) {
      auto *src = (unsigned char *)(uintptr_t)tiles[i].src, *dst = (unsigned char *)(uintptr_t)tiles[i].dst;
      unsigned char *base = memory[2 * i + 1];
      size_t at = dst - base, all = (at + tiles[i].len + 15) / 16 * 16;
      for (size_t b = 0; b < all; b++) {
        unsigned char expected = b < at || b >= at + tiles[i].len ? 0xA5 : src[b - at];
        if (base[b] != expected) {
          fprintf(stderr, "round %u tile %u byte %zu: %02x, expected %02x\n", round, i, b, base[b], expected);
          return 1;
        }
      }
      copied += tiles[i].len;
    }
    for (auto *block : memory) free(block);
    rounds++;
  }
  if (!accesses[16] || !accesses[4] || !accesses[1]) {
    fprintf(stderr, "a width of access was never used\n");
    return 1;
  }
  printf("gather.cu on the CPU: %lu rounds, %lu bytes right; accesses of 16 bytes %lu, of 4 %lu, of 1 %lu\n", rounds, copied,
         accesses[16], accesses[4], accesses[1]);
  return 0;
}
