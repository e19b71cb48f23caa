// A cuBLASLt handle.
#pragma once

// Belongs to the device that was current when it was made.
struct cublasLtContext {
  int device;
};
