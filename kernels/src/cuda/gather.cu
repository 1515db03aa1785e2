// Copies many small runs of bytes at once, between device memory and mapped host memory, either way.
//
// One warp takes one tile after the other; nothing is shared between threads, so there is no synchronisation. The table of
// tiles may lie in mapped host memory: the next tile is read while the present one is copied, which hides the bus.
// Few blocks are enough to fill the bus, so the model keeps its multiprocessors.
//
// Built by NVRTC without any header; a C++ compiler takes it too (tests/nvrtc/emulate.cpp), which is how it is tested
// where there is no GPU.

// `len` bytes from `src` to `dst`. Laid out as `Tile` in plan/tiles.rs.
struct Tile {
  unsigned long long src;
  unsigned long long dst;
  unsigned int len;
  unsigned int unused;
};

#define WARP 32u
// Accesses of a thread that are in flight before the first is used: 8 x 16 bytes x 32 threads = 4 KiB a warp.
#define DEPTH 8u

// `count` elements, each read once and written once: past the caches (evict first).
template <typename T>
__device__ __forceinline__ void copy_elements(const T *src, T *dst, unsigned int count, unsigned int lane) {
  unsigned int i = lane;
  for (; i + (DEPTH - 1) * WARP < count; i += DEPTH * WARP) {
    T held[DEPTH];
#pragma unroll
    for (unsigned int k = 0; k < DEPTH; k++) held[k] = __ldcs(src + i + k * WARP);
#pragma unroll
    for (unsigned int k = 0; k < DEPTH; k++) __stcs(dst + i + k * WARP, held[k]);
  }
  for (; i < count; i += WARP) __stcs(dst + i, __ldcs(src + i));
}

// Both addresses are equal modulo sizeof(T): bytes up to the first aligned address, elements, bytes that are left.
template <typename T>
__device__ __forceinline__ void copy_aligned(unsigned long long src, unsigned long long dst, unsigned int len,
                                             unsigned int lane) {
  unsigned int head = (unsigned int)(0ull - dst) & (unsigned int)(sizeof(T) - 1);
  if (head > len) head = len;
  unsigned int count = (len - head) / (unsigned int)sizeof(T);
  unsigned int body = count * (unsigned int)sizeof(T);
  copy_elements((const unsigned char *)src, (unsigned char *)dst, head, lane);
  copy_elements((const T *)(src + head), (T *)(dst + head), count, lane);
  unsigned int done = head + body;
  copy_elements((const unsigned char *)(src + done), (unsigned char *)(dst + done), len - done, lane);
}

__device__ __forceinline__ void copy_tile(const Tile &tile, unsigned int lane) {
  // How far the two addresses are from being aligned alike decides the widest access. KV pages: 16 bytes.
  unsigned int apart = (unsigned int)(tile.src ^ tile.dst);
  if ((apart & 15u) == 0) {
    copy_aligned<uint4>(tile.src, tile.dst, tile.len, lane);
  } else if ((apart & 3u) == 0) {
    copy_aligned<unsigned int>(tile.src, tile.dst, tile.len, lane);
  } else {
    copy_aligned<unsigned char>(tile.src, tile.dst, tile.len, lane);
  }
}

// Any grid; blocks of a multiple of 32 threads. Both kinds of memory are visible to all after the kernel's end.
extern "C" __global__ void __launch_bounds__(512) terrace_gather(const Tile *tiles, unsigned int count) {
  unsigned int lane = threadIdx.x % WARP;
  unsigned int warp = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
  unsigned int warps = gridDim.x * blockDim.x / WARP;
  if (warp >= count) return;
  Tile next = tiles[warp];
  for (unsigned int at = warp; at < count; at += warps) {
    Tile tile = next;
    if (at + warps < count) next = tiles[at + warps];
    copy_tile(tile, lane);
  }
}
