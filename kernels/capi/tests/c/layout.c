/* What this compiler makes of the header: sizes, places of fields, numbers. */
#include "program.h"

#define SIZE(type) printf("%s %zu\n", #type, sizeof(type))
#define FIELD(type, field) printf("%s.%s %zu\n", #type, #field, offsetof(type, field))
#define NUMBER(name) printf("%s %d\n", #name, (int)(name))

void print_layout(void) {
  SIZE(terrace_copy_options);
  FIELD(terrace_copy_options, size);
  FIELD(terrace_copy_options, kind);
  FIELD(terrace_copy_options, path);
  FIELD(terrace_copy_options, flags);
  FIELD(terrace_copy_options, device);
  FIELD(terrace_copy_options, nvrtc);
  FIELD(terrace_copy_options, cache_dir);
  FIELD(terrace_copy_options, piece_bytes);
  FIELD(terrace_copy_options, kernel_blocks);
  FIELD(terrace_copy_options, queue_entries);
  FIELD(terrace_copy_options, host_threads);
  FIELD(terrace_copy_options, register_threads);
  SIZE(terrace_copy_region_state);
  FIELD(terrace_copy_region_state, bytes);
  FIELD(terrace_copy_region_state, pieces);
  FIELD(terrace_copy_region_state, registered);
  FIELD(terrace_copy_region_state, refused);
  FIELD(terrace_copy_region_state, is_over);
  SIZE(terrace_copy_pages);
  FIELD(terrace_copy_pages, base);
  FIELD(terrace_copy_pages, page_bytes);
  FIELD(terrace_copy_pages, page_stride);
  FIELD(terrace_copy_pages, num_blocks);
  FIELD(terrace_copy_pages, reserved);
  SIZE(terrace_copy_slots);
  FIELD(terrace_copy_slots, base);
  FIELD(terrace_copy_slots, stride);
  FIELD(terrace_copy_slots, slots);
  FIELD(terrace_copy_slots, reserved);
  SIZE(terrace_copy_job);
  FIELD(terrace_copy_job, id);
  FIELD(terrace_copy_job, block_ids);
  FIELD(terrace_copy_job, group_sizes);
  FIELD(terrace_copy_job, block_indices);
  FIELD(terrace_copy_job, slots);
  FIELD(terrace_copy_job, n_block_ids);
  FIELD(terrace_copy_job, n_groups);
  FIELD(terrace_copy_job, n_slots);
  FIELD(terrace_copy_job, reserved);
  SIZE(terrace_copy_order);
  FIELD(terrace_copy_order, after_kind);
  FIELD(terrace_copy_order, before_kind);
  FIELD(terrace_copy_order, after);
  FIELD(terrace_copy_order, before);
  SIZE(terrace_copy_ended);
  FIELD(terrace_copy_ended, id);
  FIELD(terrace_copy_ended, bytes);
  FIELD(terrace_copy_ended, micros);
  FIELD(terrace_copy_ended, code);
  FIELD(terrace_copy_ended, reserved);
  NUMBER(TERRACE_COPY_ABI);
  NUMBER(TERRACE_COPY_OK);
  NUMBER(TERRACE_COPY_INVALID);
  NUMBER(TERRACE_COPY_HANDLE);
  NUMBER(TERRACE_COPY_UNSUPPORTED);
  NUMBER(TERRACE_COPY_MISSING_LIBRARY);
  NUMBER(TERRACE_COPY_OUT_OF_MEMORY);
  NUMBER(TERRACE_COPY_FULL);
  NUMBER(TERRACE_COPY_TIMEOUT);
  NUMBER(TERRACE_COPY_DEVICE_LOST);
  NUMBER(TERRACE_COPY_FAILED);
  NUMBER(TERRACE_COPY_INTERNAL);
  NUMBER(TERRACE_COPY_AUTO);
  NUMBER(TERRACE_COPY_HOST);
  NUMBER(TERRACE_COPY_CUDA);
  NUMBER(TERRACE_COPY_PATH_AUTO);
  NUMBER(TERRACE_COPY_PATH_BATCH);
  NUMBER(TERRACE_COPY_PATH_RUNS);
  NUMBER(TERRACE_COPY_PATH_RECTS);
  NUMBER(TERRACE_COPY_PATH_KERNEL);
  NUMBER(TERRACE_COPY_NO_COPIES);
  NUMBER(TERRACE_COPY_STORE);
  NUMBER(TERRACE_COPY_LOAD);
  NUMBER(TERRACE_COPY_NO_POINT);
  NUMBER(TERRACE_COPY_STREAM);
  NUMBER(TERRACE_COPY_EVENT);
  NUMBER(TERRACE_COPY_HANDLE_BYTES);
}
