/* A worker without a GPU, in C. Without arguments it drives the host engine; "layout" prints what the header says. */
#include <string.h>

#include "program.h"

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "layout") == 0) {
    print_layout();
  } else {
    drive_host();
    puts("driven");
  }
  return 0;
}
