// Error handling shared by every folder: absl::Status for what clients, peers, files or the system
// can cause, RF_CHECK (check.h) for what only our own bug can cause.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RF_CONCAT_INNER(a, b) a##b
#define RF_CONCAT(a, b) RF_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expr` is not OK.
#define RF_RETURN_IF_ERROR(expr)                            \
  do {                                                      \
    if (absl::Status rf_status = (expr); !rf_status.ok()) { \
      return rf_status;                                     \
    }                                                       \
  } while (false)

// Evaluates a StatusOr; assigns its value to `lhs` or returns its status.
#define RF_ASSIGN_OR_RETURN(lhs, expr) RF_ASSIGN_IMPL(RF_CONCAT(rf_or_, __LINE__), lhs, expr)
#define RF_ASSIGN_IMPL(tmp, lhs, expr)           \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = *std::move(tmp)
