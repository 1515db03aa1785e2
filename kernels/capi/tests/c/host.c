/* The host engine: stores, loads, chunks, null blocks, bad jobs, bad arguments. */
#include <string.h>

#include "program.h"

/* Group 0: two tensors with pages of 96 bytes, the second with gaps between them. Group 1: one with pages of 256 bytes. */
enum { BLOCKS = 40, PAGE = 96, GAP = 32, WIDE = 256, CHUNK = 3, SLOTS = 16, STRIDE = 4096, PART = 512 };
enum { PART_BYTES = CHUNK * WIDE };

static uint8_t first[BLOCKS * PAGE], second[BLOCKS * (PAGE + GAP)], wide[BLOCKS * WIDE];
static uint8_t region[SLOTS * STRIDE];

static terrace_copy_engine engine;
static terrace_copy_layout layout;
static terrace_copy_region registered;
static terrace_copy_slots slots;

static uint8_t mark(int tensor, uint32_t block, int byte) { return (uint8_t)(tensor * 71 + block * 13 + byte * 7 + 1); }

static void fill_blocks(void) {
  for (uint32_t block = 0; block < BLOCKS; block++) {
    for (int byte = 0; byte < PAGE; byte++) first[block * PAGE + byte] = mark(0, block, byte);
    for (int byte = 0; byte < PAGE; byte++) second[block * (PAGE + GAP) + byte] = mark(1, block, byte);
    for (int byte = 0; byte < WIDE; byte++) wide[block * WIDE + byte] = mark(2, block, byte);
  }
}

static void open_all(uint32_t queue_entries) {
  terrace_copy_options options = {.size = sizeof options, .kind = TERRACE_COPY_HOST, .queue_entries = queue_entries};
  CHECK(terrace_copy_open(&options, &engine) == TERRACE_COPY_OK && engine != 0);
  CHECK(terrace_copy_register_region(engine, (uintptr_t)region, sizeof region, &registered) == TERRACE_COPY_OK);
  const terrace_copy_pages pages[3] = {
      {.base = (uintptr_t)first, .page_bytes = PAGE, .page_stride = PAGE, .num_blocks = BLOCKS},
      {.base = (uintptr_t)second, .page_bytes = PAGE, .page_stride = PAGE + GAP, .num_blocks = BLOCKS},
      {.base = (uintptr_t)wide, .page_bytes = WIDE, .page_stride = WIDE, .num_blocks = BLOCKS},
  };
  const uint32_t lens[2] = {2, 1};
  for (int at = 0; at < 3; at++) {
    CHECK(terrace_copy_add_memory(engine, pages[at].base, pages[at].page_stride * BLOCKS) == TERRACE_COPY_OK);
  }
  CHECK(terrace_copy_add_layout(engine, pages, 3, lens, 2, CHUNK, PART, PART_BYTES, 0, &layout) == TERRACE_COPY_OK);
  slots = (terrace_copy_slots){.base = (uintptr_t)region, .stride = STRIDE, .slots = SLOTS};
}

/* Takes n jobs, all of which must end well; the sum of their bytes. */
static uint64_t take(uint32_t n) {
  uint64_t bytes = 0;
  while (n > 0) {
    terrace_copy_ended ended[2];
    uint32_t got = 9;
    CHECK(terrace_copy_poll(engine, ended, 2, &got) == TERRACE_COPY_OK && got <= 2);
    for (uint32_t at = 0; at < got; at++) {
      CHECK(ended[at].code == TERRACE_COPY_OK);
      bytes += ended[at].bytes;
    }
    n -= got;
  }
  return bytes;
}

/* The bytes of a group's tensor at a place of a slot's part. */
static const uint8_t *held(uint32_t slot, int tensor, int place) {
  static const size_t starts[3] = {0, CHUNK * PAGE, 0};
  size_t page = tensor == 2 ? WIDE : PAGE;
  return region + slot * STRIDE + PART + starts[tensor] + place * page;
}

static void check_held(uint32_t slot, int tensor, int place, uint32_t block) {
  for (int byte = 0; byte < (tensor == 2 ? WIDE : PAGE); byte++) {
    CHECK(held(slot, tensor, place)[byte] == mark(tensor, block, byte));
  }
}

static void all_equal(const uint8_t *bytes, size_t len, uint8_t value) {
  for (size_t at = 0; at < len; at++) CHECK(bytes[at] == value);
}

/* Group 0: blocks at places 2 | 0 1 2 (one null) | 0 of three slots. Group 1: places 0 1. */
static const uint32_t BLOCK_IDS[7] = {5, 6, 0, 8, 30, 11, 39};
static const uint32_t SIZES[2] = {5, 2}, INDICES[2] = {CHUNK + 2, 2 * CHUNK}, SLOT_IDS[4] = {7, 2, 9, 15};
static const terrace_copy_job JOB = {
    .id = 77, .block_ids = BLOCK_IDS, .group_sizes = SIZES, .block_indices = INDICES, .slots = SLOT_IDS,
    .n_block_ids = 7, .n_groups = 2, .n_slots = 4,
};
enum { JOB_BYTES = 4 * 2 * PAGE + 2 * WIDE };

static void there_and_back(void) {
  fill_blocks();
  memset(region, 0xA5, sizeof region);
  int32_t result = -1;
  CHECK(terrace_copy_submit(engine, layout, &slots, TERRACE_COPY_STORE, &JOB, 1, NULL, &result) == TERRACE_COPY_OK);
  CHECK(result == TERRACE_COPY_OK);
  CHECK(terrace_copy_wait(engine, &JOB.id, 1, 10000) == TERRACE_COPY_OK);
  CHECK(take(1) == JOB_BYTES);
  for (int tensor = 0; tensor < 2; tensor++) {
    check_held(7, tensor, 2, 5);
    check_held(2, tensor, 0, 6);
    all_equal(held(2, tensor, 1), PAGE, 0xA5); /* the null block */
    check_held(2, tensor, 2, 8);
    check_held(9, tensor, 0, 30);
    all_equal(held(9, tensor, 1), PAGE, 0xA5);
  }
  check_held(15, 2, 0, 11);
  check_held(15, 2, 1, 39);
  all_equal(region + 7 * STRIDE, PART, 0xA5); /* somebody else's part */
  all_equal(region + 7 * STRIDE + PART + PART_BYTES, STRIDE - PART - PART_BYTES, 0xA5);

  memset(first, 0x5A, sizeof first);
  memset(second, 0x5A, sizeof second);
  memset(wide, 0x5A, sizeof wide);
  CHECK(terrace_copy_submit(engine, layout, &slots, TERRACE_COPY_LOAD, &JOB, 1, NULL, &result) == TERRACE_COPY_OK);
  CHECK(result == TERRACE_COPY_OK && take(1) == JOB_BYTES);
  static const uint32_t back[4] = {5, 6, 8, 30};
  for (int at = 0; at < 4; at++) {
    for (int byte = 0; byte < PAGE; byte++) {
      CHECK(first[back[at] * PAGE + byte] == mark(0, back[at], byte));
      CHECK(second[back[at] * (PAGE + GAP) + byte] == mark(1, back[at], byte));
    }
    all_equal(second + back[at] * (PAGE + GAP) + PAGE, GAP, 0x5A);
  }
  all_equal(first, 5 * PAGE, 0x5A); /* the null block among them */
  for (int byte = 0; byte < WIDE; byte++) CHECK(wide[39 * WIDE + byte] == mark(2, 39, byte));
  all_equal(wide + 12 * WIDE, 27 * WIDE, 0x5A);
}

/* One bad job refuses no other. */
static void bad_jobs(void) {
  static const uint32_t outside[7] = {5, 6, 0, 8, BLOCKS, 11, 39}, no_slot[4] = {7, 2, 9, SLOTS};
  terrace_copy_job jobs[9];
  for (int at = 0; at < 9; at++) {
    jobs[at] = JOB;
    jobs[at].id = 100 + at;
  }
  jobs[0].block_ids = outside;
  jobs[1].slots = no_slot;
  jobs[2].n_slots = 3;
  jobs[3].n_block_ids = 6;
  jobs[4].n_groups = 1;
  jobs[5].block_ids = NULL;
  jobs[6].slots = (const uint32_t *)((const char *)SLOT_IDS + 1);
  jobs[7].reserved = 1;
  int32_t results[9] = {0};
  CHECK(terrace_copy_submit(engine, layout, &slots, TERRACE_COPY_STORE, jobs, 9, NULL, results) == TERRACE_COPY_OK);
  for (int at = 0; at < 8; at++) CHECK(results[at] == TERRACE_COPY_INVALID);
  CHECK(results[8] == TERRACE_COPY_OK && strstr(terrace_copy_message(), "block 40") != NULL);
  CHECK(take(1) == JOB_BYTES);
}

/* Jobs that ended and were not taken count too. */
static void full(void) {
  static const uint32_t none[2] = {0, 0};
  terrace_copy_job jobs[5];
  for (int at = 0; at < 5; at++) {
    jobs[at] = JOB;
    jobs[at].id = at;
    jobs[at].n_block_ids = jobs[at].n_slots = 0; /* nothing to copy */
    jobs[at].group_sizes = none;
  }
  int32_t results[5];
  CHECK(terrace_copy_submit(engine, layout, &slots, TERRACE_COPY_STORE, jobs, 5, NULL, results) == TERRACE_COPY_OK);
  CHECK(results[3] == TERRACE_COPY_OK && results[4] == TERRACE_COPY_FULL);
  CHECK(take(4) == 0);
  CHECK(terrace_copy_submit(engine, layout, &slots, TERRACE_COPY_STORE, jobs + 4, 1, NULL, results) == TERRACE_COPY_OK);
  CHECK(results[0] == TERRACE_COPY_OK && take(1) == 0);
}

static int32_t submit_with(const terrace_copy_slots *table, uint32_t direction, const terrace_copy_job *jobs,
                           const terrace_copy_order *order, int32_t *result) {
  return terrace_copy_submit(engine, layout, table, direction, jobs, 1, order, result);
}

static void bad_arguments(void) {
  int32_t result;
  uint32_t n;
  uint64_t made = 123;
  CHECK(submit_with(NULL, TERRACE_COPY_STORE, &JOB, NULL, &result) == TERRACE_COPY_INVALID);
  CHECK(submit_with(&slots, 2, &JOB, NULL, &result) == TERRACE_COPY_INVALID);
  CHECK(submit_with(&slots, TERRACE_COPY_STORE, NULL, NULL, &result) == TERRACE_COPY_INVALID);
  CHECK(submit_with(&slots, TERRACE_COPY_STORE, &JOB, NULL, NULL) == TERRACE_COPY_INVALID);
  terrace_copy_slots table = slots;
  table.slots = SLOTS + 1;
  CHECK(submit_with(&table, TERRACE_COPY_STORE, &JOB, NULL, &result) == TERRACE_COPY_INVALID);
  CHECK(strstr(terrace_copy_message(), "registered region") != NULL);
  table.slots = 1;
  table.stride = PART + PART_BYTES - 1;
  CHECK(submit_with(&table, TERRACE_COPY_STORE, &JOB, NULL, &result) == TERRACE_COPY_INVALID);
  table.stride = UINT64_MAX;
  table.slots = 7;
  CHECK(submit_with(&table, TERRACE_COPY_STORE, &JOB, NULL, &result) == TERRACE_COPY_INVALID);
  terrace_copy_order order = {.after_kind = TERRACE_COPY_STREAM};
  CHECK(submit_with(&slots, TERRACE_COPY_STORE, &JOB, &order, &result) == TERRACE_COPY_UNSUPPORTED);

  CHECK(terrace_copy_poll(engine, NULL, 1, &n) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_poll(engine, NULL, 0, &n) == TERRACE_COPY_OK && n == 0);
  CHECK(terrace_copy_wait(engine, NULL, 1, 0) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_wait(engine, &JOB.id, 1, 0) == TERRACE_COPY_OK); /* not known: ended */
  CHECK(terrace_copy_register_region(engine, (uintptr_t)region + 100, 10, &made) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_register_region(engine, UINT64_MAX, 10, &made) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_register_region(engine, 0, 10, &made) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_add_memory(engine, 1, 0) == TERRACE_COPY_INVALID);

  const terrace_copy_pages page = {.base = (uintptr_t)first, .page_bytes = PAGE, .page_stride = PAGE, .num_blocks = BLOCKS};
  const uint32_t one = 1, two = 2, none = 0;
  CHECK(terrace_copy_add_layout(engine, &page, 1, &two, 1, 1, 0, PAGE, -1, &made) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_add_layout(engine, &page, 1, &none, 1, 1, 0, PAGE, -1, &made) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_add_layout(engine, &page, 1, &one, 1, 0, 0, PAGE, -1, &made) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_add_layout(engine, &page, 1, &one, 1, 2, 0, PAGE, -1, &made) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_add_layout(engine, &page, 1, &one, 1, 1, 0, PAGE, -2, &made) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_add_layout(engine, &page, 1, &one, 1, 1, UINT64_MAX, PAGE, -1, &made) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_add_layout(engine, NULL, 1, &one, 1, 1, 0, PAGE, -1, &made) == TERRACE_COPY_INVALID);
  CHECK(made == 123); /* nothing was written */

  uint8_t bytes[64] = {0};
  uint64_t offset, len;
  CHECK(terrace_copy_device_uuid(engine, bytes) == TERRACE_COPY_UNSUPPORTED);
  CHECK(terrace_copy_export_memory(engine, (uintptr_t)first, bytes, &offset, &len) == TERRACE_COPY_UNSUPPORTED);
  CHECK(terrace_copy_event_create(engine, &made) == TERRACE_COPY_UNSUPPORTED);
  CHECK(terrace_copy_event_open(engine, bytes, &made) == TERRACE_COPY_UNSUPPORTED);
  CHECK(terrace_copy_event_record(engine, 1, 0) == TERRACE_COPY_UNSUPPORTED);
}

static void bad_options(void) {
  terrace_copy_engine made;
  terrace_copy_options options = {.size = sizeof options, .kind = TERRACE_COPY_HOST};
  CHECK(terrace_copy_open(NULL, &made) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_open(&options, NULL) == TERRACE_COPY_INVALID);
  options.kind = 3;
  CHECK(terrace_copy_open(&options, &made) == TERRACE_COPY_INVALID);
  options.kind = TERRACE_COPY_HOST;
  options.host_threads = 65;
  CHECK(terrace_copy_open(&options, &made) == TERRACE_COPY_INVALID);
  options.host_threads = 1;
  options.flags = 2;
  CHECK(terrace_copy_open(&options, &made) == TERRACE_COPY_INVALID);
  options.flags = 0;
  options.device = "the one on the left";
  CHECK(terrace_copy_open(&options, &made) == TERRACE_COPY_INVALID);
  options.device = NULL;
  options.size = 3;
  CHECK(terrace_copy_open(&options, &made) == TERRACE_COPY_INVALID);
  /* A later header's options: what is not known must be zero. */
  struct {
    terrace_copy_options options;
    uint64_t later;
  } longer = {.options = options};
  longer.options.size = sizeof longer;
  CHECK(terrace_copy_open(&longer.options, &made) == TERRACE_COPY_OK && terrace_copy_close(made) == TERRACE_COPY_OK);
  longer.later = 1;
  CHECK(terrace_copy_open(&longer.options, &made) == TERRACE_COPY_UNSUPPORTED);
  /* An earlier one's: the rest has its defaults. */
  options.size = offsetof(terrace_copy_options, device);
  CHECK(terrace_copy_open(&options, &made) == TERRACE_COPY_OK && terrace_copy_close(made) == TERRACE_COPY_OK);
}

static void told(void) {
  char text[4096];
  size_t length = 0;
  CHECK(terrace_copy_stats(engine, NULL, 0, &length) == TERRACE_COPY_FULL && length > 0 && length < sizeof text);
  CHECK(terrace_copy_stats(engine, text, length, &length) == TERRACE_COPY_FULL);
  CHECK(terrace_copy_stats(engine, text, length + 1, &length) == TERRACE_COPY_OK && strlen(text) == length);
  CHECK(strstr(text, "\"kind\":\"host\"") != NULL && text[0] == '{' && text[length - 1] == '}');
  uint32_t kind;
  CHECK(terrace_copy_kind(engine, &kind) == TERRACE_COPY_OK && kind == TERRACE_COPY_HOST);
  terrace_copy_region_state state;
  CHECK(terrace_copy_region_progress(engine, registered, &state) == TERRACE_COPY_OK && state.is_over == 1);
}

static void handles(void) {
  int32_t result;
  CHECK(terrace_copy_region_progress(engine, layout, &(terrace_copy_region_state){0}) == TERRACE_COPY_HANDLE);
  CHECK(terrace_copy_remove_layout(engine, registered) == TERRACE_COPY_HANDLE);
  CHECK(terrace_copy_close(registered) == TERRACE_COPY_HANDLE);
  CHECK(terrace_copy_unregister_region(engine, registered) == TERRACE_COPY_OK);
  CHECK(terrace_copy_unregister_region(engine, registered) == TERRACE_COPY_HANDLE);
  CHECK(submit_with(&slots, TERRACE_COPY_STORE, &JOB, NULL, &result) == TERRACE_COPY_INVALID);
  CHECK(terrace_copy_remove_layout(engine, layout) == TERRACE_COPY_OK);
  CHECK(submit_with(&slots, TERRACE_COPY_STORE, &JOB, NULL, &result) == TERRACE_COPY_HANDLE);
  CHECK(terrace_copy_close(engine) == TERRACE_COPY_OK);
  CHECK(terrace_copy_close(engine) == TERRACE_COPY_HANDLE);
  CHECK(terrace_copy_wait(engine, NULL, 0, 0) == TERRACE_COPY_HANDLE);
}

void drive_host(void) {
  CHECK(terrace_copy_abi_version() == TERRACE_COPY_ABI);
  CHECK(strcmp(terrace_copy_message(), "") == 0);
  bad_options();
  open_all(4);
  there_and_back();
  bad_jobs();
  full();
  bad_arguments();
  told();
  handles();
  /* Closed with copies in flight and nothing polled: they end first. */
  open_all(0);
  fill_blocks();
  memset(region, 0, sizeof region);
  int32_t result;
  CHECK(submit_with(&slots, TERRACE_COPY_STORE, &JOB, NULL, &result) == TERRACE_COPY_OK && result == TERRACE_COPY_OK);
  CHECK(terrace_copy_close(engine) == TERRACE_COPY_OK);
  check_held(15, 2, 1, 39);
}
