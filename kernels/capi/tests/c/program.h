/* What the test's C files share. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdio.h>
#include <stdlib.h>

#include "terrace_copy.h"

#define CHECK(what)                                                                                             \
  do {                                                                                                          \
    if (!(what)) {                                                                                              \
      fprintf(stderr, "%s:%d: not so: %s (message: %s)\n", __FILE__, __LINE__, #what, terrace_copy_message()); \
      exit(1);                                                                                                  \
    }                                                                                                           \
  } while (0)

void print_layout(void);
void drive_host(void);

#endif
